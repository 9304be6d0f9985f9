// The ops of the domain.
#include "ops/attention.h"
#include "ops/block_gather.h"
#include "ops/block_matmul.h"
#include "ops/channel_matmul.h"
#include "ops/event_select.h"
#include "ops/event_sum.h"
#include "ops/fused.h"
#include "ops/head_shortlist.h"
#include "ops/kwta_mask.h"
#include "ops/last_positions.h"
#include "ops/popcount_matmul.h"
#include "ops/proc_sparse_matmul.h"
#include "ops/rms_norm.h"
#include "ops/seed_delta_matmul.h"
#include "ops/stage.h"
#include "ops/swiglu.h"
#include "ops/ternary_matmul.h"
#include "ops/zero_mask.h"

namespace tamiz {

const std::vector<OpSpec>& op_specs() {
  static const std::vector<OpSpec> specs = {
      block_matmul_spec(),      channel_matmul_spec(), block_gather_spec(),
      rms_norm_spec(),          swiglu_spec(),         attention_spec(),
      last_positions_spec(),    head_shortlist_spec(), proc_sparse_matmul_spec(),
      seed_delta_matmul_spec(), event_select_spec(),   event_sum_spec(),
      kwta_mask_spec(),         ternary_matmul_spec(), popcount_matmul_spec(),
      zero_mask_spec(),         fused_spec(),
  };
  return specs;
}

}  // namespace tamiz
