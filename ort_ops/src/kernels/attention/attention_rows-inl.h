// Attention of few rows (decode); equations: attention-inl.h. Each key and value is read once for
// all rows; products with rows of floats: attention_row_floats-inl.h, of bytes:
// attention_row_bytes-inl.h.
#pragma once

#include "kernels/attention/attention_panel-inl.h"
#include "kernels/attention/soft_cap-inl.h"
#include "simd/target.h"

namespace tamiz {
namespace TAMIZ_TARGET {

#if defined(TAMIZ_AVX512)
constexpr int kRowVecs = 4;  // vectors of dimensions, or of keys, at a time
#else
constexpr int kRowVecs = 2;
#endif
constexpr int kRowGroup = 4;  // rows that share the registers

struct FewRows {
  alignas(64) float score[kFewRows][kBlockKeys];
  float m[kFewRows], s[kFewRows], rescale[kFewRows];  // of a range
  float first[kFewRows], last[kFewRows], slope[kFewRows];
  float all_m[kFewRows], all_s[kFewRows];  // of the ranges before
  float *y, *all_y;                        // [rows, padded(dim)]
  // Of rows of bytes:
  float key_scale[kBlockKeys], value_scale[kBlockKeys];
  int32_t key_elements[kBlockKeys];                // their sums
  int32_t *panel, *query;                          // of the block; [rows, query_size(dim)]
  int32_t weight[kFewRows][kBlockKeys / kPacked];  // p times the value's scale
  float query_unit[kFewRows], weight_unit[kFewRows];
};

/// Calls Step::add<R> for groups of R rows.
template <class Step>
inline void each_group(const AttendArgs& a, const Block& block, FewRows& w) {
  for (int64_t row = 0; row < a.rows; row += kRowGroup) {
    switch (a.rows - row) {
      case 1:
        Step::template add<1>(a, block, row, w);
        break;
      case 2:
        Step::template add<2>(a, block, row, w);
        break;
      case 3:
        Step::template add<3>(a, block, row, w);
        break;
      default:
        Step::template add<kRowGroup>(a, block, row, w);
    }
  }
}

/// Caps the scores of a row, adds its bias and slope, and hides the keys that it does not see.
/// Apart from the products: with the cap in their unrolled loop GCC 12 made wrong code for AVX2 at
/// -O3.
inline void show_scores(const AttendArgs& a, const Block& block, int64_t row, FewRows& w) {
  float* score = w.score[row];
  const Vec first = broadcast(w.first[row]), last = broadcast(w.last[row]);
  for (int j = 0; j < block.count && a.softcap != 0.0f; j += kLanes) {
    store(score + j, soft_cap(load(score + j), a.softcap));
  }
  for (int j = 0; j < block.count && a.bias; ++j) {
    score[j] += a.bias[static_cast<int64_t>(block.position[j]) * a.bias_stride + row];
  }
  const Vec slope = broadcast(w.slope[row]);
  for (int j = 0; j < block.count && a.slope; j += kLanes) {
    store(score + j, slanted(slope, load(block.position + j), last, load(score + j)));
  }
  for (int j = 0; j < block.count; j += kLanes) {
    store(score + j, seen(a, load(block.position + j), first, last, load(score + j)));
  }
}

/// Turns the scores of a row into p, and moves its m and s on.
inline void row_softmax(int count, int64_t row, FewRows& w) {
  float* score = w.score[row];
  Vec top = broadcast(w.m[row]);
  for (int j = 0; j < count; j += kLanes) top = max(top, load(score + j));
  const float m = largest(top);
  Vec total = broadcast(0.0f);
  for (int j = 0; j < count; j += kLanes) {
    const Vec p = exp(load(score + j) - broadcast(m));
    store(score + j, p);
    total = total + p;
  }
  const Vec rescale = exp(broadcast(w.m[row] - m));
  w.s[row] = first_lane(multiply_add(broadcast(w.s[row]), rescale, broadcast(sum(total))));
  w.rescale[row] = first_lane(rescale);
  w.m[row] = m;
}

inline void begin_range(const AttendArgs& a, FewRows& w) {
  memset(w.y, 0, sizeof(float) * a.rows * padded(a.dim));
  for (int64_t r = 0; r < a.rows; ++r) {
    w.m[r] = -FLT_MAX;
    w.s[r] = 0.0f;
  }
}

inline void join_range(const AttendArgs& a, FewRows& w) {
  const int64_t stride = padded(a.dim);
  for (int64_t r = 0; r < a.rows; ++r) {
    Vec m = broadcast(w.all_m[r]), s = broadcast(w.all_s[r]);
    const Join join(m, s, broadcast(w.m[r]), broadcast(w.s[r]));
    join.rows(w.y + r * stride, stride, w.all_y + r * stride);
    w.all_m[r] = first_lane(m);
    w.all_s[r] = first_lane(s);
  }
}

template <class Products>
inline void add_block(const AttendArgs& a, const Block& block, FewRows& w) {
  Products::read_keys(a, block, w);
  each_group<typename Products::Scores>(a, block, w);
  for (int64_t row = 0; row < a.rows; ++row) {
    show_scores(a, block, row, w);
    row_softmax(block.count, row, w);
  }
  Products::read_values(a, block, w);
  each_group<typename Products::Values>(a, block, w);
}

template <class Products>
inline void attend_rows(const AttendArgs& a) {
  FewRows w;
  const int64_t stride = padded(a.dim);
  w.y = a.work;
  w.all_y = w.y + a.rows * stride;
  Products::begin(a, w.all_y + a.rows * stride, w);
  memset(w.all_y, 0, sizeof(float) * a.rows * stride);
  for (int64_t r = 0; r < a.rows; ++r) {
    w.all_m[r] = -FLT_MAX;
    w.all_s[r] = 0.0f;
    w.first[r] = first_key(a, r);
    w.last[r] = last_key(a, r);
    w.slope[r] = slope_of(a, r);
  }
  bool any = false;  // whether a key of the range has been added
  Block block;
  for (int64_t begin = a.key_begin; begin < a.key_end; begin += kBlockKeys) {
    block.count = 0;
    if (!out_of_window(a, begin)) visible_keys(a, begin, block);
    if (block.count && !any) begin_range(a, w);
    if (block.count) add_block<Products>(a, block, w);
    any = any || block.count;
    if (any && ends_range(a, begin)) {
      join_range(a, w);
      any = false;
    }
  }
  for (int64_t r = 0; r < a.rows; ++r) {
    const float factor = finish(a, r, w.all_m[r], w.all_s[r]);
    float* out = out_row(a, r);
    for (int64_t d = 0; d < a.dim; ++d) out[d] = w.all_y[r * stride + d] * factor;
  }
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
