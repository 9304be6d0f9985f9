// Which tokens of a call of Attention belong to which sequence, and where its keys lie.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/tensor.h"
#include "kernels/attention/attention.h"
#include "ops/attention/key_value_cache.h"

namespace tamiz {

/// Tokens of one sequence that stand side by side in a call.
struct Segment {
  int64_t sequence = 0;            // its row of the mask and of the cache; 0 where there are pages
  int64_t first = 0, tokens = 0;   // the first one of all tokens of the call; how many
  int64_t past = 0;                // keys before them
  bool step = false;               // a decode step, whose keys may be chosen
  int64_t rows = 0;                // query rows of a KV head
  int64_t first_tile = 0;          // of the tiles of all segments
  int64_t tile = 0, tiles = 0;     // rows of a tile; tiles of a KV head
  const int64_t* pages = nullptr;  // pages of the cache that hold its keys; null: it holds no other

  /// The row of the cache that has key `key`.
  int64_t cache_row(int64_t key) const {
    return pages ? pages[key / kPageKeys] * kPageKeys + key % kPageKeys : key;
  }
};

/// Whether the input `sequences` says what the tokens of a call belong to.
inline bool in_pages(const Tensor& sequences) { return sequences && sequences.shape.dims[0] > 0; }

/// Checks `sequences` for a call of `batch` times `tokens` tokens and a cache of `capacity` rows;
/// returns the keys of the longest sequence. Throws Error.
int64_t check_sequences(const Tensor& sequences, int64_t batch, int64_t tokens, int64_t capacity);

/// The segments of a call: those of `sequences`, or one for each row of the batch.
class Segments {
 public:
  Segments(const CacheShape& shape, const Tensor& sequences, int64_t tile_rows)
      : shape_(shape),
        sequences_(sequences),
        tile_rows_(tile_rows),
        count_(in_pages(sequences) ? sequences.shape.dims[0] : shape.batch) {}

  int64_t count() const { return count_; }

  /// Calls `use` with each of them in turn.
  template <class Use>
  void each(Use use) const {
    Segment s;
    for (int64_t i = 0; i < count_; ++i) {
      fill(i, s);
      use(s);
      s.first += s.tokens;
      s.first_tile += s.tiles;
    }
  }

 private:
  void fill(int64_t index, Segment& s) const;

  const CacheShape& shape_;
  const Tensor& sequences_;
  const int64_t tile_rows_, count_;
};

/// The segment of `at`, where `begin` is what a segment begins with: `first` or `first_tile`.
inline const Segment& segment_at(const Segment* segments, int64_t count, int64_t Segment::* begin,
                                 int64_t at) {
  const auto after = [begin](int64_t x, const Segment& s) { return x < s.*begin; };
  return std::upper_bound(segments, segments + count, at, after)[-1];
}

}  // namespace tamiz
