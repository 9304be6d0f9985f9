// The ops of the domain.
#include "ops/fused.h"
#include "ops/stage.h"
#if __has_include("ops/block_matmul.h")
#include "ops/block_matmul.h"
#define TAMIZ_HAS_BLOCK_MATMUL
#endif
#if __has_include("ops/block_gather.h")
#include "ops/block_gather.h"
#define TAMIZ_HAS_BLOCK_GATHER
#endif
#if __has_include("ops/rms_norm.h")
#include "ops/rms_norm.h"
#define TAMIZ_HAS_RMS_NORM
#endif
#if __has_include("ops/swiglu.h")
#include "ops/swiglu.h"
#define TAMIZ_HAS_SWIGLU
#endif
#if __has_include("ops/attention.h")
#include "ops/attention.h"
#define TAMIZ_HAS_ATTENTION_OP
#endif

namespace tamiz {

const std::vector<OpSpec>& op_specs() {
  static const std::vector<OpSpec> specs = {
#ifdef TAMIZ_HAS_BLOCK_MATMUL
      block_matmul_spec(),
#endif
#ifdef TAMIZ_HAS_BLOCK_GATHER
      block_gather_spec(),
#endif
#ifdef TAMIZ_HAS_RMS_NORM
      rms_norm_spec(),
#endif
#ifdef TAMIZ_HAS_SWIGLU
      swiglu_spec(),
#endif
#ifdef TAMIZ_HAS_ATTENTION_OP
      attention_spec(),
#endif
      fused_spec(),
  };
  return specs;
}

}  // namespace tamiz
