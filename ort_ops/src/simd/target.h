// The level of instructions that a translation unit is compiled for.
//
// Kernels are written once and compiled once per level: CMake compiles kernels/level*.cc with
//
//   TAMIZ_TARGET           the namespace of the level: every name of an `-inl.h` header lies in it,
//   so
//                          that the linker never mixes functions of two levels
//   one of TAMIZ_AVX512, TAMIZ_AVX2, TAMIZ_HALVES and TAMIZ_SCALAR: what its vectors are
//   TAMIZ_DOT              products of four bytes at a time: VPDPBUSD, SDOT or USDOT
//   TAMIZ_DOT_SIGNED       .. both of whose factors are signed: SDOT
//   TAMIZ_I8MM             .. and of matrices of them: SMMLA, USMMLA
//   TAMIZ_VBMI             beside TAMIZ_AVX512: VBMI, VBMI2 and VPOPCNTDQ
//   TAMIZ_AMX              beside these: tiles of bytes
//
// TAMIZ_HALVES is any processor: a vector is two of 16 bytes. SCALAR is every kernel as its
// equation reads, for tests.
//
// The headers of a level include no C++ standard library: its inline functions would be compiled
// with wide instructions, and the linker could pick them for code that runs on any CPU.
#pragma once

#if defined(TAMIZ_AVX512) + defined(TAMIZ_AVX2) + defined(TAMIZ_HALVES) + defined(TAMIZ_SCALAR) != 1
#error "define one of TAMIZ_AVX512, TAMIZ_AVX2, TAMIZ_HALVES and TAMIZ_SCALAR before kernels"
#endif
#if !defined(TAMIZ_TARGET)
#error "define TAMIZ_TARGET, the namespace of the level"
#endif

#if !defined(TAMIZ_SCALAR)
#define TAMIZ_VECTORS 1
#endif
#if defined(TAMIZ_DOT) && !defined(TAMIZ_DOT_SIGNED)
#define TAMIZ_DOT_UNSIGNED 1  // one factor has any unsigned byte
#endif

#if defined(TAMIZ_AVX512) || defined(TAMIZ_AVX2) || (defined(TAMIZ_HALVES) && defined(__aarch64__))
#define TAMIZ_FUSED 1  // `fma` rounds once
#endif

#define TAMIZ_ALWAYS_INLINE __attribute__((always_inline)) inline
