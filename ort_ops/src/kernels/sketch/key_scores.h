// Kernels of scores of keys from rows of four bits an element, and of the choice of keys by the
// part of a softmax that these scores give them.
#pragma once

#include <stdint.h>

namespace tamiz {

/// Planes of bits that a key's row of nibbles is as long as.
constexpr int64_t kNibblePlanes = 4;

/// Four bits of a rotated key's element encode -7 .. 7.
constexpr int kMostNibble = 7;

/// A rotated query as bytes q_d.
struct ScoreQuery {
  const int8_t* bytes;  // [bits]
  float scale;          // the query is scale * bits * q
  float sum;            // 8 times that of all q_d
};

struct ScoreArgs {
  const float* rows;    // [keys, sketch_words(dim, kNibblePlanes)]
  const int64_t* mask;  // [keys]: 0 hides a key
  int64_t keys, bits;
  const ScoreQuery* queries;
  int64_t query_count;
  float softcap;         // of score + offset (soft_cap-inl.h); 0: none, and no offset is added
  const float* offsets;  // [query_count]: q.mean
  float* weights;  // [query_count, stride]: exp(score - the largest of them), 0 where hidden and
                   // up to a whole kScoreBlock
  int64_t stride;
  float* stats;  // [query_count, 2]: the largest score and the sum of the weights
};

/// Weights come in whole blocks of keys.
constexpr int64_t kScoreBlock = 16;
/// Keys of a choice at most.
constexpr int64_t kMostChoice = 4096;

struct ChooseArgs {
  const float* weights;  // as above
  int64_t stride;
  int64_t query_count;
  const float* least;   // [query_count]
  const int64_t* mask;  // [keys]: 0 hides a key
  int64_t keys;
  int32_t first;    // what the first key is called in the lists
  int32_t* kept;    // [keys]: keys of which a weight is above its least one
  int32_t* others;  // [keys]: keys that are seen and not kept; null: not computed
  float* left;      // [query_count]: the sum of the weights of the others; may be `least`
};

struct Chosen {
  int64_t kept, others;
};

struct KeyScoreKernels {
  /// The row of a rotated key z [bits]: z_d = s (n_d - 8), two nibbles n_d and n_(d + 32) of 64
  /// a byte, and then s = max |z| / 7; s and z are 0 where s would be no normal float, and NaN
  /// where z is not finite.
  void (*pack)(const float* z, int64_t bits, float* row);

  /// q = round(z / scale) of a rotated query z [bits], scale = max |z| / 127.
  ScoreQuery (*pack_query)(const float* z, int64_t bits, int8_t* bytes);

  void (*score)(const ScoreArgs&);

  Chosen (*choose)(const ChooseArgs&);
};

}  // namespace tamiz
