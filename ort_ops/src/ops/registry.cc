// The ops of the domain.
#include "engine/fused.h"
#include "engine/op_spec.h"
#include "ops/attention/attention.h"
#include "ops/attention/text_attention.h"
#include "ops/basic/layer_norm.h"
#include "ops/basic/rms_norm.h"
#include "ops/basic/scale.h"
#include "ops/basic/sum.h"
#include "ops/basic/swiglu.h"
#include "ops/convolution/short_conv.h"
#include "ops/events/event_select.h"
#include "ops/events/event_sum.h"
#include "ops/experts/expert_matmul.h"
#include "ops/experts/expert_router.h"
#include "ops/experts/expert_sum.h"
#include "ops/head/head_shortlist.h"
#include "ops/head/last_positions.h"
#include "ops/masks/kwta_mask.h"
#include "ops/masks/sign_mask.h"
#include "ops/masks/zero_mask.h"
#include "ops/products/block_gather.h"
#include "ops/products/block_matmul.h"
#include "ops/products/channel_matmul.h"
#include "ops/products/chosen_matmul.h"
#include "ops/products/popcount_matmul.h"
#include "ops/products/proc_sparse_matmul.h"
#include "ops/products/seed_delta_matmul.h"
#include "ops/products/ternary_matmul.h"
#include "ops/recurrence/gated_delta_net.h"
#include "ops/recurrence/mamba2.h"
#include "ops/recurrence/selective_scan.h"

namespace tamiz {

const std::vector<OpSpec>& op_specs() {
  static const std::vector<OpSpec> specs = {
      block_matmul_spec(),
      channel_matmul_spec(),
      chosen_matmul_spec(),
      block_gather_spec(),
      rms_norm_spec(),
      layer_norm_spec(),
      sum_spec(),
      scale_spec(),
      swiglu_spec(),
      expert_router_spec(),
      expert_matmul_spec(),
      expert_sum_spec(),
      attention_spec(),
      text_attention_spec(),
      short_conv_spec(),
      gated_delta_net_spec(),
      mamba2_spec(),
      selective_scan_spec(),
      last_positions_spec(),
      head_shortlist_spec(),
      proc_sparse_matmul_spec(),
      seed_delta_matmul_spec(),
      event_select_spec(),
      event_sum_spec(),
      kwta_mask_spec(),
      ternary_matmul_spec(),
      popcount_matmul_spec(),
      zero_mask_spec(),
      sign_mask_spec(),
      fused_spec(),
  };
  return specs;
}

}  // namespace tamiz
