#pragma once

#include "ops/products/product_ports.h"

namespace tamiz {

#define BLOCK_MATMUL_INPUTS(PORT)                                                     \
  PRODUCT_X(PORT)                                                                     \
  PORT(weight, uint8, required,                                                       \
       "[ceil(n / 16), tile bytes], packed by tamiz_ops.pack_* or tamiz_ops.formats") \
  PRODUCT_MASK(PORT)                                                                  \
  PRODUCT_BIAS(PORT)
TAMIZ_PORTS(BlockMatMulInput, BLOCK_MATMUL_INPUTS);

/// The op `BlockMatMul`; its stage runs the kernels of kernels/products/matmul.h.
const OpSpec& block_matmul_spec();

}  // namespace tamiz
