// One table of kernels a level of instructions. Included by kernels/level.cc: no STL here.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/basic/elementwise.h"
#include "kernels/basic/scale.h"
#include "kernels/channels/channels.h"
#include "kernels/convolution/short_conv.h"
#include "kernels/deltas/deltas.h"
#include "kernels/deltas/seedlm.h"
#include "kernels/events/events.h"
#include "kernels/experts/experts.h"
#include "kernels/products/bytes.h"
#include "kernels/products/matmul.h"
#include "kernels/recurrence/delta_net.h"
#include "kernels/recurrence/selective_scan.h"
#include "kernels/recurrence/state_space.h"
#include "kernels/selection/select.h"
#include "kernels/selection/shortlist.h"
#include "kernels/selection/signs.h"
#include "kernels/sketch/key_scores.h"
#include "kernels/sketch/sketch.h"
#include "kernels/ternary/popcount.h"
#include "kernels/ternary/ternary.h"

namespace tamiz {

struct Kernels {
  const char* isa;
  MatMulKernels matmul;
  const ByteKernels* bytes;  // null where those of `matmul` are as fast
  ByteKernels wide;          // with one scale for kWideInputs inputs; weights of 8 bits
  ChannelKernels channels;
  DeltaKernels deltas;
  AttentionKernels attention;
  ElementwiseKernels elementwise;
  ShortlistKernels shortlist;
  EventKernels events;
  ExpertKernels experts;
  SelectKernels select;
  SignKernels signs;
  SketchKernels sketch;
  KeyScoreKernels key_scores;
  SeedlmKernels seedlm;
  TernaryKernels ternary;
  PopcountKernels popcount;
  ShortConvKernels short_conv;
  DeltaNetKernels delta_net;
  StateSpaceKernels state_space;
  ScanKernels scan;
  ScaleKernel* scale;
};

}  // namespace tamiz
