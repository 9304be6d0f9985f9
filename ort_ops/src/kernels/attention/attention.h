// Kernels of rotary attention over a key/value cache.
#pragma once

#include <stdint.h>

namespace tamiz {

/// Up to this many query rows are worked row by row, more of them as a tile.
constexpr int64_t kFewRows = 12;

/// Keys are summed in ranges of this many, a multiple of the blocks of both ways; the sums of
/// ranges are added in their order. So the bits of a row depend on its query and on the keys that
/// it sees, not on the rows beside it nor on how keys are cut into tasks.
constexpr int64_t kRangeKeys = 128;

/// Keys of a page of the cache: a block of both ways, so that all keys of a block lie side by side.
constexpr int64_t kPageKeys = 64;

/// Most query rows of a tile.
constexpr int64_t kMostTileRows = 64;

/// Most elements of a key that is rounded to bytes.
constexpr int64_t kMostRoundedDim = 512;

/// Floats that a key or a value of `dim` elements takes in the cache: `dim`, or a quarter of it and
/// a scale where elements are bytes.
constexpr int64_t cache_words(int64_t dim, bool bytes) { return bytes ? dim / 4 + 1 : dim; }

/// Some query rows of one KV head against a range of its keys. Row r is query r / group
/// of query head r % group of the KV head; query i sees the keys up to past + i.
struct AttendArgs {
  const float* query;    // [rows, dim]: rotated, scaled, of the rows from first_row on
  const float* keys;     // [.., cache_words]: of the KV head, from key 0 on
  const float* values;   // [.., cache_words]
  int64_t row_stride;    // floats from a key, and from a value, to the next
  bool bytes;            // whether these rows are of bytes
  const int64_t* mask;   // [..]: 0 hides a key from all queries; null where there are pages
  const int64_t* pages;  // [..]: key j is row j % kPageKeys of page j / kPageKeys; null: row j
  int64_t rows;          // at most kFewRows or tile_rows
  int64_t first_row;
  int64_t key_begin, key_end;  // begins where a range begins
  const int32_t* list;  // the keys attended: list[key_begin .. key_end - 1], ascending and none
                        // beyond the queries or hidden; null: the keys of that range themselves
  int64_t window;       // without a list: keys seen back from each query, itself included; 0: all
  bool window_of_visible;          // whether the mask hides keys of a window: it begins at
  float begin[kMostTileRows + 1];  // begin[i] for query first_row / group + i, ascending
  int64_t sink_end;                // keys before it are seen from everywhere
  int64_t dim, group, past;
  float softcap;      // of the scores (soft_cap-inl.h); 0: none
  const float* bias;  // bias[j * bias_stride + r] is added to the score of row first_row + r and
                      // key j, to none after a cap; read for kMostTileRows rows; null: none
  int64_t bias_stride;
  const float* slope;  // [group]: slope (j - i) is added to the score of query i and key j, to none
                       // after a cap; null: none
  const float* sink;   // [group], a logit that joins the sum of a query head's softmax; null: none
  float* work;         // work_floats(rows, dim, bytes) floats
  float* out;          // row r goes to out + r / group * out_stride + r % group * dim
  int64_t out_stride;
  float* stats;  // [rows, 2]: largest score and sum, and `out` is not divided by the sum;
                 // null: it is
};

/// What DeBERTa adds to the scores of some query rows and keys: see relative_scores-inl.h.
struct RelativeArgs {
  const float* query;     // [rows, dim]: scaled
  const float* keys;      // [key_count, dim]
  const float* c2p;       // [dim, columns]; null: none
  const float* p2c;       // [dim, columns]; null: none
  const int32_t* column;  // column[j - r] of both is that of row r and key j
  int64_t rows;           // at most kMostTileRows
  int64_t key_count, dim, columns;
  float scale;  // of the scores of p2c
  float* work;  // [max(rows, kRelativeKeys), columns]
  float* out;   // out[j * out_stride + r]
  int64_t out_stride;
};

/// Keys whose scores with positions are summed at a time.
constexpr int64_t kRelativeKeys = 8;

struct AttentionKernels {
  int64_t tile_rows;

  int64_t (*work_floats)(int64_t rows, int64_t dim, bool bytes);

  /// Writes a key or a value x [dim] into its row of the cache [cache_words]; `dim` is a multiple
  /// of 4 where the row is of bytes.
  void (*store_row)(const float* x, int64_t dim, bool bytes, float* row);

  /// cos(p f) and sin(p f), times `factor`, for `half` frequencies f: cosine[half], sine[half].
  void (*rotary_angles)(int64_t position, const float* frequencies, int64_t half, float factor,
                        float* cosine, float* sine);

  /// y = scale * rotate(x) for one head: its first 2 half elements in pairs (i, i + half).
  void (*rotate)(const float* x, const float* cosine, const float* sine, int64_t half, int64_t dim,
                 float scale, float* y);

  void (*attend)(const AttendArgs&);

  void (*relative_scores)(const RelativeArgs&);

  /// Joins what `attend` left for one row over `splits` parts of the keys, in their order, into
  /// `out` [dim]; `sink` is the row's own, or null.
  void (*merge)(const float* partial, int64_t partial_stride, const float* stats,
                int64_t stats_stride, int64_t splits, int64_t dim, const float* sink, float* out);
};

}  // namespace tamiz
