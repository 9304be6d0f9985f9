// One table of kernels an instruction set. Included by the target_*.cc files: no STL here.
#pragma once

#include "kernels/attention.h"
#include "kernels/channels.h"
#include "kernels/deltas.h"
#include "kernels/elementwise.h"
#include "kernels/events.h"
#include "kernels/key_scores.h"
#include "kernels/matmul.h"
#include "kernels/popcount.h"
#include "kernels/seedlm.h"
#include "kernels/select.h"
#include "kernels/shortlist.h"
#include "kernels/signs.h"
#include "kernels/sketch.h"
#include "kernels/ternary.h"

namespace tamiz {

struct Kernels {
  const char* isa;
  MatMulKernels matmul;
  ChannelKernels channels;
  DeltaKernels deltas;
  AttentionKernels attention;
  ElementwiseKernels elementwise;
  ShortlistKernels shortlist;
  EventKernels events;
  SelectKernels select;
  SignKernels signs;
  SketchKernels sketch;
  KeyScoreKernels key_scores;
  SeedlmKernels seedlm;
  TernaryKernels ternary;
  PopcountKernels popcount;
};

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

}  // namespace tamiz
