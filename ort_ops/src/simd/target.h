// The instruction set that a translation unit is compiled for.
//
// Kernels are written once and compiled once per instruction set: kernels/target_avx512.cc,
// target_avx2.cc and target_portable.cc each define one of TAMIZ_AVX512, TAMIZ_AVX2 and
// TAMIZ_PORTABLE before their first include. Every name of an `-inl.h` header lies in the namespace
// TAMIZ_TARGET, so that the linker never mixes functions of two instruction sets.
//
// The headers of a target include no C++ standard library: its inline functions would be compiled
// with wide instructions, and the linker could pick them for code that runs on any CPU.
#pragma once

#if defined(TAMIZ_AVX512) + defined(TAMIZ_AVX2) + defined(TAMIZ_PORTABLE) != 1
#error "define one of TAMIZ_AVX512, TAMIZ_AVX2 and TAMIZ_PORTABLE before including kernels"
#endif

#if defined(TAMIZ_AMX)  // beside TAMIZ_AVX512
#define TAMIZ_TARGET amx
#elif defined(TAMIZ_AVX512)
#define TAMIZ_TARGET avx512
#elif defined(TAMIZ_AVX2)
#define TAMIZ_TARGET avx2
#else
#define TAMIZ_TARGET portable
#endif
