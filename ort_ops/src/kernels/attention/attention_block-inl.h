// What the two ways of attention have in common: a block of keys, rows of the output.
#pragma once

#include <float.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cache-inl.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

constexpr int kBlockKeys = 64;
static_assert(kRangeKeys % kBlockKeys == 0, "else a block would lie in two ranges");
static_assert(kPageKeys == kBlockKeys, "else a block would lie in two pages");

/// Whether a range of keys ends with the block that begins at `begin`.
inline bool ends_range(const AttendArgs& a, int64_t begin) {
  const int64_t end = begin + kBlockKeys;
  return end >= a.key_end || end % kRangeKeys == 0;
}

/// How the sums of a range with largest score m and sum s join those before it, M and S; lane by
/// lane.
struct Join {
  Vec before, range;  // what multiplies the sums before the range, and its own

  Join(Vec& all_m, Vec& all_s, Vec m, Vec s) {
    const Vec top = max(all_m, m);
    before = exp(all_m - top);
    range = exp(m - top);
    all_m = top;
    all_s = multiply_add(all_s, before, range * s);
  }
  Vec operator()(Vec all, Vec y) const { return multiply_add(all, before, range * y); }

  /// Of one row, whose numbers are in all lanes.
  void rows(const float* y, int64_t dim, float* all) const {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(all + d, (*this)(load(all + d), load(y + d)));
    const int64_t rest = dim - d;
    if (rest) {
      const Vec joined = (*this)(load_partial(all + d, rest), load_partial(y + d, rest));
      store_partial(all + d, joined, rest);
    }
  }
};

/// The keys of a block that can be seen.
struct Block {
  int count;
  int32_t index[kBlockKeys];   // the rows of the cache that have them
  int32_t later[kBlockKeys];   // those to expect a block later
  float position[kBlockKeys];  // the keys as floats; +inf from `count` on
};

/// The last key that a row sees.
inline float last_key(const AttendArgs& a, int64_t row) {
  return static_cast<float>(a.past + (a.first_row + row) / a.group);
}

/// The first key that its window shows.
inline float first_key(const AttendArgs& a, int64_t row) {
  if (!a.window) return -HUGE_VALF;
  if (!a.window_of_visible) return last_key(a, row) - static_cast<float>(a.window - 1);
  return a.begin[(a.first_row + row) / a.group - a.first_row / a.group];
}

/// Whether no row sees a key of the block.
inline bool out_of_window(const AttendArgs& a, int64_t begin) {
  const float last = static_cast<float>(begin + kBlockKeys - 1);
  return !a.list && last < first_key(a, 0) && begin >= a.sink_end;
}

inline int64_t row_words(const AttendArgs& a) { return cache_words(a.dim, a.bytes); }

/// scale[j] of the keys or of the values of a block of rows of bytes.
inline void row_scales(const AttendArgs& a, const Block& block, const float* rows, float* scale) {
  for (int j = 0; j < kBlockKeys; ++j) {
    scale[j] = row_scale(rows + block.index[j] * row_words(a), a.dim);
  }
}

/// Prefetches a row of the cache that is needed a block later: the processor's own prefetching
/// stops at page borders and at the jumps between keys and values.
inline void prefetch(const float* row, int64_t words) {
  constexpr int kLine = 16;
  for (int64_t i = 0; i < words; i += kLine) __builtin_prefetch(row + i, 0, 2);
}

/// All keys of a page; those of the next one are expected later.
inline void page_keys(const AttendArgs& a, int64_t begin, int count, Block& block) {
  const int64_t* page = a.pages + begin / kPageKeys;
  const int64_t row = page[0] * kPageKeys;
  const int64_t later = begin + kPageKeys < a.key_end ? page[1] * kPageKeys : row;
  for (int j = 0; j < count; ++j) {
    block.index[j] = static_cast<int32_t>(row + j);
    block.later[j] = static_cast<int32_t>(later + j);
    block.position[j] = static_cast<float>(begin + j);
  }
  block.count = count;
}

/// The keys of the list, or those of the range that the mask shows.
inline void masked_keys(const AttendArgs& a, int64_t begin, int count, Block& block) {
  const int64_t* mask = a.mask + begin;
  int hidden = 0;
  for (int j = 0; j < count && !a.list; ++j) hidden += mask[j] == 0;
  block.count = 0;
  if (a.list) {
    memcpy(block.index, a.list + begin, sizeof(int32_t) * count);
    const int64_t words = row_words(a);
    for (int j = 0; j < count; ++j) prefetch(a.keys + block.index[j] * a.row_stride, words);
    block.count = count;
  } else if (hidden == 0) {
    for (int j = 0; j < count; ++j) block.index[j] = static_cast<int32_t>(begin + j);
    block.count = count;
  } else {
    for (int j = 0; j < count; ++j) {
      block.index[block.count] = static_cast<int32_t>(begin + j);
      block.count += mask[j] != 0;
    }
  }
  for (int j = 0; j < block.count; ++j) {
    const int64_t later = begin + j + kBlockKeys;
    const int64_t in_list = later < a.key_end ? later : a.key_end - 1;
    block.later[j] = a.list ? a.list[in_list] : block.index[j] + kBlockKeys;
    block.position[j] = static_cast<float>(block.index[j]);
  }
}

inline void visible_keys(const AttendArgs& a, int64_t begin, Block& block) {
  const int count =
      static_cast<int>(a.key_end - begin < kBlockKeys ? a.key_end - begin : kBlockKeys);
  if (a.pages) {
    page_keys(a, begin, count, block);
  } else {
    masked_keys(a, begin, count, block);
  }
  for (int j = block.count; j < kBlockKeys; ++j) {
    block.position[j] = HUGE_VALF;
    if (block.count) block.index[j] = block.index[block.count - 1];
  }
}

/// The scores of the keys that rows see, -inf for the others, by their first_key and last_key.
inline Vec seen(const AttendArgs& a, Vec position, Vec first, Vec last, Vec score) {
  const Vec hidden = broadcast(-HUGE_VALF);
  const Vec sink = broadcast(static_cast<float>(a.sink_end - 1));
  score = select_le(position, last, score, hidden);
  return select_le(first, position, score, select_le(position, sink, score, hidden));
}

/// slope of the query head of a row; 0 where there are none.
inline float slope_of(const AttendArgs& a, int64_t row) {
  return a.slope ? a.slope[(a.first_row + row) % a.group] : 0.0f;
}

/// Scores less what a key's distance before the query takes off, slope (position - last).
inline Vec slanted(Vec slope, Vec position, Vec last, Vec score) {
  return multiply_add(slope, position - last, score);
}

inline int64_t padded(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

inline float* out_row(const AttendArgs& a, int64_t row) {
  const int64_t r = a.first_row + row;
  return a.out + r / a.group * a.out_stride + r % a.group * a.dim;
}

/// What the sums of a row, its largest score m and its sum s, are multiplied with at the end.
inline float last_factor(float m, float s, const float* sink) {
  if (!sink) return s == 0.0f ? 0.0f : 1.0f / s;
  Vec top = broadcast(m), total = broadcast(s);
  const Join join(top, total, broadcast(*sink), broadcast(1.0f));
  const float sum = first_lane(total);
  return sum == 0.0f ? 0.0f : first_lane(join.before) / sum;
}

/// What a row is multiplied with at the end, and its stats.
inline float finish(const AttendArgs& a, int64_t row, float m, float s) {
  if (!a.stats) return last_factor(m, s, a.sink ? a.sink + (a.first_row + row) % a.group : nullptr);
  a.stats[2 * row] = m;
  a.stats[2 * row + 1] = s;
  return 1.0f;
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
