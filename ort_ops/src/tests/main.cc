// Runs the native tests named on the command line, or all of them.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "tests/check.h"
#include "tests/tests.h"

namespace tamiz::test {
namespace {
int failed = 0;
}

void fail(const char* file, int line, const char* condition, const char* context) {
  constexpr int kPrinted = 20;
  if (++failed <= kPrinted) {
    std::fprintf(stderr, "%s:%d: %s is false (%s)\n", file, line, condition, context);
  }
}

int failures() { return failed; }

}  // namespace tamiz::test

int main(int count, char** names) {
  using namespace tamiz::test;
  struct Test {
    const char* name;
    const char* isa;  // that the machine needs
    void (*run)();
  };
  const std::vector<Test> tests = {
      {"packing", "scalar", test_packing},
      {"products", "scalar", test_products},
      {"affine", "scalar", test_affine},
      {"team", "scalar", test_team},
      {"simd_scalar", "scalar", tamiz::scalar::test_simd},
#if defined(__x86_64__)
      {"simd_avx2", "avx2", tamiz::avx2::test_simd},
      {"simd_avxvnni", "avxvnni", tamiz::avxvnni::test_simd},
      {"simd_avx512base", "avx512base", tamiz::avx512base::test_simd},
      {"simd_avx512vnni", "avx512vnni", tamiz::avx512vnni::test_simd},
      {"simd_avx512", "avx512", tamiz::avx512::test_simd},
#endif
#if defined(__aarch64__)
      {"simd_neon", "neon", tamiz::neon::test_simd},
      {"simd_dotprod", "dotprod", tamiz::dotprod::test_simd},
      {"simd_i8mm", "i8mm", tamiz::i8mm::test_simd},
#else
      {"simd_portable", "portable", tamiz::portable::test_simd},
#endif
  };
  const std::vector<std::string> isas = tamiz::runnable_isas();
  int run = 0;
  for (const Test& test : tests) {
    bool wanted = count < 2;
    for (int i = 1; i < count; ++i) wanted = wanted || !std::strcmp(names[i], test.name);
    if (!wanted) continue;
    bool runnable = false;
    for (const std::string& isa : isas) runnable = runnable || isa == test.isa;
    if (!runnable) {
      std::printf("%s: skipped, this machine lacks %s\n", test.name, test.isa);
      ++run;
      continue;
    }
    const int before = failures();
    test.run();
    std::printf("%s: %s\n", test.name, failures() == before ? "passed" : "FAILED");
    ++run;
  }
  if (!run) std::fprintf(stderr, "no test has one of these names\n");
  return failures() || !run;
}
