#include "kernels/dispatch.h"

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tamiz {
namespace {

struct Target {
  const Kernels* kernels;
  bool runnable;
};

#if defined(__x86_64__)
/// Whether the processor multiplies tiles of bytes, and Linux lets this process use them: it wants
/// to be asked once, as a tile register takes 1 kB.
bool amx_permitted() {
#if defined(__linux__)
  static const bool permitted = [] {
    constexpr long kRequest = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;
    constexpr unsigned kTiles = 1u << 24, kBytes = 1u << 25;  // AMX-TILE, AMX-INT8
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    if (!(edx & kTiles) || !(edx & kBytes)) return false;
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return permitted;
#else
  return false;
#endif
}
#endif

std::vector<Target> targets() {
  std::vector<Target> all;
#if defined(__x86_64__)
  bool avx2 = true;
  bool avx512 = true;
  for (const auto& [name, present] : cpu_features()) {
    const bool wide = name.rfind("avx512", 0) == 0, tiles = name.rfind("amx", 0) == 0;
    avx512 = avx512 && (tiles || present);
    avx2 = avx2 && (wide || tiles || present);
  }
  all.push_back({&kernels_amx, avx512 && amx_permitted()});
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
      {"amx-int8", amx_permitted()},
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
      throw Error(source + " names " + name + ", which this CPU does not have.");
    }
    known += (known.empty() ? "" : ", ") + std::string(target.kernels->isa);
  }
  throw Error(source + " is '" + name + "', expected one of: " + known + ".");
}

}  // namespace tamiz
