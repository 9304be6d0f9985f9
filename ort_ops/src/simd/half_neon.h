// What simd/halves.h needs of 16 bytes, by NEON; with TAMIZ_DOT SDOT, with TAMIZ_I8MM USDOT.
#pragma once

#include <arm_neon.h>

#include "simd/half.h"

namespace tamiz {
namespace TAMIZ_TARGET {

TAMIZ_ALWAYS_INLINE Floats4 half_fma(Floats4 a, Floats4 b, Floats4 c) { return vfmaq_f32(c, a, b); }
TAMIZ_ALWAYS_INLINE Floats4 half_max(Floats4 a, Floats4 b) { return choose(a > b, a, b); }
TAMIZ_ALWAYS_INLINE Floats4 half_min(Floats4 a, Floats4 b) { return choose(a < b, a, b); }
TAMIZ_ALWAYS_INLINE Floats4 half_round(Floats4 x) { return vrndnq_f32(x); }
TAMIZ_ALWAYS_INLINE Floats4 half_floor(Floats4 x) { return vrndmq_f32(x); }
TAMIZ_ALWAYS_INLINE Floats4 add_pairs(Floats4 a, Floats4 b) { return vpaddq_f32(a, b); }
TAMIZ_ALWAYS_INLINE Floats4 half_to_floats(Ints4 x) { return vcvtq_f32_s32(x); }
TAMIZ_ALWAYS_INLINE Ints4 half_to_ints(Floats4 x) { return vcvtnq_s32_f32(x); }
TAMIZ_ALWAYS_INLINE Ints4 half_ints_max(Ints4 a, Ints4 b) { return vmaxq_s32(a, b); }

TAMIZ_ALWAYS_INLINE Ints4 half_dot_pairs(Ints4 sum, Ints4 a, Ints4 b) {
  const int16x8_t x = as<int16x8_t>(a), y = as<int16x8_t>(b);
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
  return vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(x, y)));
}
#if defined(TAMIZ_DOT_UNSIGNED)
TAMIZ_ALWAYS_INLINE Ints4 half_dot_quads(Ints4 sum, Ints4 a, Ints4 b) {
  return vusdotq_s32(sum, as<uint8x16_t>(a), as<int8x16_t>(b));
}
template <int Quad>
TAMIZ_ALWAYS_INLINE Ints4 half_dot_quad(Ints4 sum, Ints4 a, Ints4 b) {
  return vusdotq_laneq_s32(sum, as<uint8x16_t>(a), as<int8x16_t>(b), Quad);
}
/// [2, 2] += unsigned [2, 8] of a times the transpose of signed [2, 8] of b.
TAMIZ_ALWAYS_INLINE Ints4 half_dot_eights(Ints4 sum, Ints4 a, Ints4 b) {
  return vusmmlaq_s32(sum, as<uint8x16_t>(a), as<int8x16_t>(b));
}
#elif defined(TAMIZ_DOT)
TAMIZ_ALWAYS_INLINE Ints4 half_dot_quads(Ints4 sum, Ints4 a, Ints4 b) {
  return vdotq_s32(sum, as<int8x16_t>(a), as<int8x16_t>(b));
}
template <int Quad>
TAMIZ_ALWAYS_INLINE Ints4 half_dot_quad(Ints4 sum, Ints4 a, Ints4 b) {
  return vdotq_laneq_s32(sum, as<int8x16_t>(a), as<int8x16_t>(b), Quad);
}
#endif

#if defined(TAMIZ_DOT)
TAMIZ_ALWAYS_INLINE bool half_any_bits(Ints4 x) { return vmaxvq_u32(as<UInts4>(x)) != 0; }
#endif

TAMIZ_ALWAYS_INLINE Ints4 half_pack_words(Ints4 a, Ints4 b) {
  const Words8 words = as<Words8>(vqmovn_high_s32(vqmovn_s32(a), b));
  return as<Ints4>(TAMIZ_SHUFFLE(Words8, words, words, 0, 2, 1, 3, 4, 6, 5, 7));
}
TAMIZ_ALWAYS_INLINE Ints4 half_look_up(UBytes16 table, Ints4 x) {
  return as<Ints4>(vqtbl1q_u8(as<uint8x16_t>(table), as<uint8x16_t>(x)));
}
TAMIZ_ALWAYS_INLINE Floats4 half_pick_of_eight(const float* table, Ints4 x) {
  const uint8x16x2_t bytes = {{read<uint8x16_t>(table), read<uint8x16_t>(table + 4)}};
  const Ints4 first = (x & 7) * 0x04040404 + 0x03020100;  // of each byte
  return as<Floats4>(vqtbl2q_u8(bytes, as<uint8x16_t>(first)));
}
TAMIZ_ALWAYS_INLINE Floats4 low_halves_to_floats(Words8 halves) {
  return vcvt_f32_f16(vget_low_f16(as<float16x8_t>(halves)));
}
TAMIZ_ALWAYS_INLINE Floats4 high_halves_to_floats(Words8 halves) {
  return vcvt_high_f32_f16(as<float16x8_t>(halves));
}

TAMIZ_ALWAYS_INLINE uint32_t first_bits(Ints4 x) {
  const UInts4 bits = {1, 2, 4, 8};
  return vaddvq_u32(as<UInts4>(x) & bits);
}
TAMIZ_ALWAYS_INLINE uint32_t first_byte_bits(UBytes16 x) {
  const UBytes16 bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t set = as<uint8x16_t>(x & bits);
  return vaddv_u8(vget_low_u8(set)) | static_cast<uint32_t>(vaddv_u8(vget_high_u8(set))) << 8;
}
TAMIZ_ALWAYS_INLINE UBytes16 byte_counts(Ints4 x) {
  return as<UBytes16>(vcntq_u8(as<uint8x16_t>(x)));
}
TAMIZ_ALWAYS_INLINE Ints4 sum_of_int(UBytes16 x) {
  return as<Ints4>(vpaddlq_u16(vpaddlq_u8(as<uint8x16_t>(x))));
}
TAMIZ_ALWAYS_INLINE Longs2 sum_of_long(UBytes16 x) {
  return as<Longs2>(vpaddlq_u32(vpaddlq_u16(vpaddlq_u8(as<uint8x16_t>(x)))));
}

}  // namespace TAMIZ_TARGET
}  // namespace tamiz
