// Runs one product of tamiz, for benchmarks/kernels/mca.py: compiled like a level, without its
// dispatch. Weights are zeros, on which no instruction depends. On inputs one does: whether their
// high bytes are zeros, which those of 8 bits are.
//
//   tamiz FORMAT ROWS BITS GROUPS       BITS of the inputs, 16 or 8; GROUPS of 32 inputs
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <iterator>

#include "kernels/products/bytes-inl.h"
#include "kernels/products/matmul-inl.h"

using namespace tamiz;
using namespace tamiz::TAMIZ_TARGET;

template <Format F>
static void multiply_as(const MultiplyArgs& a, const ByteRows* x) {
  if (x) return multiply_bytes<Planar<F>>(a, *x);
  multiply_packed<Planar<F>>(a);
}

extern "C" __attribute__((noinline)) void measured(const char* format, const MultiplyArgs& a,
                                                   const ByteRows* x) {
  if (!strcmp(format, "q4_0")) multiply_as<Format::q4_0>(a, x);
  if (!strcmp(format, "q4_k")) multiply_as<Format::q4_k>(a, x);
}
extern "C" __attribute__((noinline)) void finished() { asm volatile(""); }

constexpr int64_t kOutputs = 64, kMostRows = 64, kMostGroups = 64;
alignas(4096) static uint8_t weight[kOutputs * kMostGroups * 64];
alignas(64) static int16_t words[kMostRows * kMostGroups * kGroup];
alignas(64) static int8_t bytes[kMostRows * kMostGroups * kGroup];
alignas(64) static float scales[kMostRows * kMostGroups], sums[kMostRows * kMostGroups];
alignas(64) static int32_t half_sums[2 * kMostRows * kMostGroups];
alignas(64) static float y[kMostRows * kOutputs];

int main(int, char** arguments) {
  const int64_t rows = atoi(arguments[2]), groups = atoi(arguments[4]);
  MultiplyArgs a{};
  a.weight = weight;
  a.tiles = kOutputs / kTile;
  a.x = {rows, groups, words, scales, sums, nullptr, half_sums};
  a.rows = rows;
  a.outputs = kOutputs;
  a.y = y;
  a.y_stride = kOutputs;
  const bool of_bytes = atoi(arguments[3]) == 8;
  std::fill(std::begin(words), std::end(words), of_bytes ? 1 : 256);
  const ByteRows x{rows, groups, bytes, scales, half_sums};
  measured(arguments[1], a, of_bytes && rows >= kByteRows ? &x : nullptr);
  finished();
}
