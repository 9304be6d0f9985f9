// The native tests; each reports by CHECK.
#pragma once

namespace tamiz::test {

/// kernels/products/packing.h: sizes, every half-precision number, quants and scales of a tile.
void test_packing();
/// Quantised rows and products: every instruction set gives the bits of the portable one, and these
/// are the product of what the packed bytes mean.
void test_products();
/// engine/program_team.cc: stages see all that earlier stages wrote, whatever the threads.
void test_team();

/// simd/simd.h and simd/simd_int.h against plain loops, compiled once per instruction set.
void test_simd_portable();
void test_simd_avx2();
void test_simd_avx512();

}  // namespace tamiz::test
