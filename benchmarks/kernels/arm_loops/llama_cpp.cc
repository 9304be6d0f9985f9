// Runs one product of llama.cpp, for benchmarks/kernels/mca.py: linked with its kernels for ARM.
//
//   llama_cpp KERNEL ROWS GROUPS        GROUPS of 32 inputs
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

using Dot = void(int, float*, size_t, const void*, size_t, const void*, size_t, int);
using Repacked = void(int, float*, size_t, const void*, const void*, int, int);

extern "C" {
Dot ggml_vec_dot_q4_0_q8_0, ggml_vec_dot_q4_K_q8_K;
Repacked ggml_gemv_q4_0_4x4_q8_0, ggml_gemv_q4_K_8x4_q8_K;
Repacked ggml_gemm_q4_0_4x8_q8_0, ggml_gemm_q4_K_8x8_q8_K;

__attribute__((noinline)) void finished() { asm volatile(""); }
}

constexpr int kOutputs = 64, kMostRows = 64, kMostGroups = 64;
alignas(4096) static uint8_t weight[kOutputs * kMostGroups * 64];
alignas(4096) static uint8_t input[kMostRows * kMostGroups * 64];
alignas(64) static float y[kMostRows * kOutputs];

/// Every output with every row; two of each at a time where there are several rows.
static void dots(Dot* dot, int rows, int k, size_t weight_row, size_t input_row) {
  const int together = rows > 1 ? 2 : 1;
  for (int o = 0; o < kOutputs; o += together) {
    for (int r = 0; r < rows; r += together) {
      dot(k, y + r * kOutputs + o, kOutputs, weight + o * weight_row, weight_row,
          input + r * input_row, input_row, together);
    }
  }
}

extern "C" __attribute__((noinline)) void measured(const char* kernel, int rows, int k) {
  const auto is = [&](const char* name) { return !strcmp(kernel, name); };
  const auto repacked = [&](Repacked* product) {
    product(k, y, kOutputs, weight, input, rows, kOutputs);
  };
  if (is("dot_q4_0")) dots(ggml_vec_dot_q4_0_q8_0, rows, k, k / 32 * 18, k / 32 * 34);
  if (is("dot_q4_k")) dots(ggml_vec_dot_q4_K_q8_K, rows, k, k / 256 * 144, k / 256 * 292);
  if (is("gemv_q4_0")) repacked(ggml_gemv_q4_0_4x4_q8_0);
  if (is("gemv_q4_k")) repacked(ggml_gemv_q4_K_8x4_q8_K);
  if (is("gemm_q4_0")) repacked(ggml_gemm_q4_0_4x8_q8_0);
  if (is("gemm_q4_k")) repacked(ggml_gemm_q4_K_8x8_q8_K);
}

int main(int, char** arguments) {
  measured(arguments[1], atoi(arguments[2]), 32 * atoi(arguments[3]));
  finished();
}
