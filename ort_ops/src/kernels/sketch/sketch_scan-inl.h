// The scan of sketch-inl.h over kLanes keys at a time.
#pragma once

#include <stdint.h>

#include "kernels/sketch/sketch.h"
#include "kernels/sketch/sketch_lookup-inl.h"
#include "kernels/sketch/sketch_rows-inl.h"
#include "simd/simd.h"

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_VECTORS)

/// sum_d q_d [bit d of the plane], by keys; B bits of the query, Horner's rule from its sign down.
template <int W, int B>
inline Ints dot_planes(const SketchQuery& q, const Ints* plane) {
  Ints sum = all_longs(0);
  for (int i = B - 1; i >= 0; --i) {
    Ints count = long_counts(bits_and(plane[0], all_longs(q.planes[i * W])));
    for (int w = 1; w < W; ++w) {
      count = longs_plus(count, long_counts(bits_and(plane[w], all_longs(q.planes[i * W + w]))));
    }
    sum = i == B - 1 ? longs_minus(sum, count) : longs_plus(longs_plus(sum, sum), count);
  }
  return sum;
}

template <int W, int P, int B>
inline Ints dot_keys(const SketchQuery& q, const Ints* plane) {
  const Ints dot = dot_planes<W, B>(q, plane);
  if (P == 2) return longs_minus(dot, dot_planes<W, B>(q, plane + (P - 1) * W));
  return longs_minus(longs_plus(dot, dot), all_longs(static_cast<uint64_t>(int64_t{q.sum})));
}

/// Scans kLanes keys at a time; returns how many keys that were.
template <int W, int P, int B>
inline int64_t scan_many(const SketchScanArgs& a) {
  constexpr int kRow = 2 * W * P + 1;
  constexpr int kHalf = kLanes / 2;
  constexpr int kAhead = 128;  // keys
  int64_t key = 0;
  for (; key + kLanes <= a.keys; key += kLanes) {
    const float* row = a.rows + key * kRow;
    for (int i = 0; i < kLanes * kRow; i += 16) __builtin_prefetch(row + kAhead * kRow + i);
    Ints low[P * W], high[P * W];
    for (int w = 0; w < P * W; ++w) {
      low[w] = Rows<kRow>::longs(row + 2 * w);
      high[w] = Rows<kRow>::longs(row + kHalf * kRow + 2 * w);
    }
    const Vec gamma = Rows<kRow>::floats(row + kRow - 1);
    int16_t* score = a.scores + key;
    for (int64_t i = 0; i < a.query_count; ++i, score += a.stride) {
      const SketchQuery& q = a.queries[i];
      const Vec dot = longs_to_float(dot_keys<W, P, B>(q, low), dot_keys<W, P, B>(q, high));
      store_scores(score, gamma * dot * broadcast(q.scale));
    }
  }
  return key;
}

#if !defined(TAMIZ_VBMI)
template <int W, int P>
inline int64_t scan_by_tables(const SketchScanArgs&) {
  return 0;
}
#endif

template <int W, int P>
inline int64_t scan_many(const SketchScanArgs& a) {
  if (const int64_t keys = scan_by_tables<W, P>(a)) return keys;
  switch (a.query_bits) {
    case 2:
      return scan_many<W, P, 2>(a);
    case 4:
      return scan_many<W, P, 4>(a);
    case 8:
      return scan_many<W, P, 8>(a);
    default:
      return 0;
  }
}

inline int64_t scan_many(const SketchScanArgs& a) {
  switch (a.bits / 64 * 2 + a.planes) {
    case 3:
      return scan_many<1, 1>(a);
    case 4:
      return scan_many<1, 2>(a);
    case 5:
      return scan_many<2, 1>(a);
    case 6:
      return scan_many<2, 2>(a);
    case 9:
      return scan_many<4, 1>(a);
    case 10:
      return scan_many<4, 2>(a);
    default:
      return 0;
  }
}

#else

inline int64_t scan_many(const SketchScanArgs&) { return 0; }

#endif

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
