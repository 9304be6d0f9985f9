// Products of a level with the formats of GGUF files: apart from level.cc, so that both are
// compiled at the same time. No STL in here.
#include "kernels/products/formats-inl.h"
