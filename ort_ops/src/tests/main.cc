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
      {"packing", "portable", test_packing}, {"products", "portable", test_products},
      {"team", "portable", test_team},       {"simd_portable", "portable", test_simd_portable},
#if defined(__x86_64__)
      {"simd_avx2", "avx2", test_simd_avx2}, {"simd_avx512", "avx512", test_simd_avx512},
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
