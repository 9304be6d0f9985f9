#include "kernels/dispatch.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/chosen/chosen.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace tamiz {

#define TAMIZ_LEVEL(name)                  \
  namespace name {                         \
  extern const Kernels level;              \
  extern const AffineKernels level_affine; \
  extern const ChosenKernels level_chosen; \
  }
#if defined(__x86_64__)
namespace avx512bf16 {
extern const PairKernels level_pairs;  // of the levels amx and avx512
}
TAMIZ_LEVEL(amx)  // of which most are those of avx512
TAMIZ_LEVEL(avx512)
TAMIZ_LEVEL(avx512vnni)
TAMIZ_LEVEL(avx512base)
TAMIZ_LEVEL(avxvnni)
TAMIZ_LEVEL(avx2)
#endif
#if defined(__aarch64__)
TAMIZ_LEVEL(i8mm)
TAMIZ_LEVEL(dotprod)
TAMIZ_LEVEL(neon)
#else
TAMIZ_LEVEL(portable)
#endif
TAMIZ_LEVEL(scalar)
#undef TAMIZ_LEVEL

namespace {

using Features = std::vector<std::string>;

struct Level {
  const Kernels* kernels;
  const AffineKernels* affine;
  const ChosenKernels* chosen;
  Features needs;
  const PairKernels* pairs = nullptr;
};

#if defined(__x86_64__)
Features operator+(Features a, const Features& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
#endif

/// All levels that are compiled in, best first. CMakeLists.txt says which levels of x86-64 are.
std::vector<Level> levels() {
#if defined(__x86_64__)
  const Features avx2 = {"avx2", "fma", "f16c", "bmi2"};
  const Features base = avx2 + Features{"avx512f", "avx512bw", "avx512vl", "avx512dq"};
  const Features vnni = base + Features{"avx512vnni"};
  const Features vbmi = vnni + Features{"avx512vbmi", "avx512vbmi2", "avx512vpopcntdq"};
  return {
#ifdef TAMIZ_HAS_avx512
      {&amx::level, &avx512::level_affine, &avx512::level_chosen, vbmi + Features{"amx-int8"},
       &avx512bf16::level_pairs},
      {&avx512::level, &avx512::level_affine, &avx512::level_chosen, vbmi,
       &avx512bf16::level_pairs},
#endif
#ifdef TAMIZ_HAS_avx512vnni
      {&avx512vnni::level, &avx512vnni::level_affine, &avx512vnni::level_chosen, vnni},
#endif
#ifdef TAMIZ_HAS_avx512base
      {&avx512base::level, &avx512base::level_affine, &avx512base::level_chosen, base},
#endif
#ifdef TAMIZ_HAS_avxvnni
      {&avxvnni::level, &avxvnni::level_affine, &avxvnni::level_chosen, avx2 + Features{"avxvnni"}},
#endif
#ifdef TAMIZ_HAS_avx2
      {&avx2::level, &avx2::level_affine, &avx2::level_chosen, avx2},
#endif
      {&portable::level, &portable::level_affine, &portable::level_chosen, {}},
      {&scalar::level, &scalar::level_affine, &scalar::level_chosen, {}}};
#elif defined(__aarch64__)
  return {{&i8mm::level, &i8mm::level_affine, &i8mm::level_chosen, {"dotprod", "i8mm"}},
          {&dotprod::level, &dotprod::level_affine, &dotprod::level_chosen, {"dotprod"}},
          {&neon::level, &neon::level_affine, &neon::level_chosen, {}},
          {&scalar::level, &scalar::level_affine, &scalar::level_chosen, {}}};
#else
  return {{&portable::level, &portable::level_affine, &portable::level_chosen, {}},
          {&scalar::level, &scalar::level_affine, &scalar::level_chosen, {}}};
#endif
}

bool has(const std::string& feature) {
  const auto features = cpu_features();
  return std::find(features.begin(), features.end(), std::pair(feature, true)) != features.end();
}

bool runnable(const Level& level) {
  return std::all_of(level.needs.begin(), level.needs.end(), has);
}

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

/// Not every compiler's __builtin_cpu_supports knows it.
bool has_avx_vnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) &&
         (eax & kAvxVnni);
}
#elif defined(__aarch64__)
/// A feature by its bit in HWCAP or HWCAP2, or its name on macOS.
bool has_feature([[maybe_unused]] unsigned long type, [[maybe_unused]] unsigned long bit,
                 [[maybe_unused]] const char* name) {
#if defined(__linux__)
  return getauxval(type) & bit;
#elif defined(__APPLE__)
  int present = 0;
  size_t size = sizeof present;
  return sysctlbyname(name, &present, &size, nullptr, 0) == 0 && present;
#else
  return false;
#endif
}
#endif

}  // namespace

std::vector<std::pair<std::string, bool>> cpu_features() {
#if defined(__x86_64__)
  // __builtin_cpu_supports also checks whether the operating system saves the registers.
  return {
      {"avx2", __builtin_cpu_supports("avx2")},
      {"fma", __builtin_cpu_supports("fma")},
      {"f16c", __builtin_cpu_supports("f16c")},
      {"bmi2", __builtin_cpu_supports("bmi2")},
      {"avxvnni", has_avx_vnni()},
      {"avx512f", __builtin_cpu_supports("avx512f")},
      {"avx512bw", __builtin_cpu_supports("avx512bw")},
      {"avx512vl", __builtin_cpu_supports("avx512vl")},
      {"avx512dq", __builtin_cpu_supports("avx512dq")},
      {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
      {"avx512vbmi", __builtin_cpu_supports("avx512vbmi")},
      {"avx512vbmi2", __builtin_cpu_supports("avx512vbmi2")},
      {"avx512vpopcntdq", __builtin_cpu_supports("avx512vpopcntdq")},
      {"avx512bf16", __builtin_cpu_supports("avx512bf16")},
      {"amx-int8", amx_permitted()},
  };
#elif defined(__aarch64__)
  constexpr unsigned long kHwcap = 16, kHwcap2 = 26;  // AT_HWCAP, AT_HWCAP2
  return {{"dotprod", has_feature(kHwcap, 1ul << 20, "hw.optional.arm.FEAT_DotProd")},
          {"i8mm", has_feature(kHwcap2, 1ul << 13, "hw.optional.arm.FEAT_I8MM")}};
#else
  return {};
#endif
}

std::vector<std::string> runnable_isas() {
  std::vector<std::string> names;
  for (const Level& level : levels()) {
    if (runnable(level)) names.push_back(level.kernels->isa);
  }
  return names;
}

namespace {

Level level_of(const Kernels& kernels) {
  for (const Level& one : levels()) {
    if (one.kernels == &kernels) return one;
  }
  throw Error("no level of instructions has these kernels");
}

}  // namespace

const AffineKernels& affine_kernels(const Kernels& level) { return *level_of(level).affine; }

const ChosenKernels& chosen_kernels(const Kernels& level) { return *level_of(level).chosen; }

const PairKernels* pair_kernels(const Kernels& level) {
  return has("avx512bf16") ? level_of(level).pairs : nullptr;
}

const Kernels& kernels(const char* isa) {
  const bool given = isa && *isa;
  const char* environment = std::getenv("TAMIZ_ISA");
  const std::string name = given ? isa : environment ? environment : "";
  const std::string source = given ? "isa" : "TAMIZ_ISA";
  std::string known;
  for (const Level& level : levels()) {
    if (name.empty() && runnable(level)) return *level.kernels;
    if (name == level.kernels->isa) {
      if (runnable(level)) return *level.kernels;
      throw Error(source + " names " + name + ", which this CPU does not have.");
    }
    known += (known.empty() ? "" : ", ") + std::string(level.kernels->isa);
  }
  throw Error(source + " is '" + name + "', expected one of: " + known + ".");
}

}  // namespace tamiz
