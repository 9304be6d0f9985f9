#include "kernels/dispatch.h"

#include <cstdlib>

namespace tamiz {
namespace {

struct Target {
  const Kernels* kernels;
  bool runnable;
};

std::vector<Target> targets() {
  std::vector<Target> all;
#if defined(__x86_64__)
  bool avx2 = true;
  bool avx512 = true;
  for (const auto& [name, present] : cpu_features()) {
    const bool wide = name.rfind("avx512", 0) == 0;
    avx512 = avx512 && present;
    avx2 = avx2 && (wide || present);
  }
  all.push_back({&kernels_avx512, avx512});
  all.push_back({&kernels_avx2, avx2});
#endif
  all.push_back({&kernels_portable, true});
  return all;
}

}  // namespace

std::vector<std::pair<std::string, bool>> cpu_features() {
#if defined(__x86_64__)
  // __builtin_cpu_supports also checks whether the operating system saves the registers.
  return {
      {"avx2", __builtin_cpu_supports("avx2")},
      {"fma", __builtin_cpu_supports("fma")},
      {"f16c", __builtin_cpu_supports("f16c")},
      {"bmi2", __builtin_cpu_supports("bmi2")},
      {"avx512f", __builtin_cpu_supports("avx512f")},
      {"avx512bw", __builtin_cpu_supports("avx512bw")},
      {"avx512vl", __builtin_cpu_supports("avx512vl")},
      {"avx512dq", __builtin_cpu_supports("avx512dq")},
      {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
      {"avx512vbmi", __builtin_cpu_supports("avx512vbmi")},
      {"avx512vbmi2", __builtin_cpu_supports("avx512vbmi2")},
      {"avx512vpopcntdq", __builtin_cpu_supports("avx512vpopcntdq")},
  };
#else
  return {};
#endif
}

std::vector<std::string> runnable_isas() {
  std::vector<std::string> names;
  for (const Target& target : targets()) {
    if (target.runnable) names.push_back(target.kernels->isa);
  }
  return names;
}

const Kernels& kernels(const char* isa) {
  const bool given = isa && *isa;
  const char* environment = std::getenv("TAMIZ_ISA");
  const std::string name = given ? isa : environment ? environment : "";
  const std::string source = given ? "isa" : "TAMIZ_ISA";
  std::string known;
  for (const Target& target : targets()) {
    if (name.empty() && target.runnable) return *target.kernels;
    if (name == target.kernels->isa) {
      if (target.runnable) return *target.kernels;
      throw Error(source + " asks for " + name + ", which this CPU does not have.");
    }
    known += (known.empty() ? "" : ", ") + std::string(target.kernels->isa);
  }
  throw Error(source + " is '" + name + "', expected one of: " + known + ".");
}

}  // namespace tamiz
