// The native tests; each reports by CHECK.
#pragma once

namespace tamiz::test {

/// kernels/products/packing.h: sizes, every half-precision number, quants and scales of a tile.
void test_packing();
/// Quantised rows and products: every level gives the bits of the scalar one, and these
/// are the product of what the packed bytes mean.
void test_products();
/// kernels/affine/affine.h: every level gives the bits of the scalar one.
void test_affine();
/// engine/program_team.cc: stages see all that earlier stages wrote, whatever the threads.
void test_team();

}  // namespace tamiz::test

/// simd/simd.h and simd/simd_int.h against plain loops, compiled once per level.
#define TAMIZ_LEVEL_TEST(level) \
  namespace tamiz::level {      \
  void test_simd();             \
  }
TAMIZ_LEVEL_TEST(scalar)
TAMIZ_LEVEL_TEST(portable)
TAMIZ_LEVEL_TEST(avx2)
TAMIZ_LEVEL_TEST(avxvnni)
TAMIZ_LEVEL_TEST(avx512base)
TAMIZ_LEVEL_TEST(avx512vnni)
TAMIZ_LEVEL_TEST(avx512)
TAMIZ_LEVEL_TEST(neon)
TAMIZ_LEVEL_TEST(dotprod)
TAMIZ_LEVEL_TEST(i8mm)
#undef TAMIZ_LEVEL_TEST
