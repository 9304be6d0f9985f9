// A minimal test harness: CHECK counts and prints failures, the program's exit status reports them.
//
// No inline functions and no C++ standard library in here: simd_test.cc includes it and is compiled
// for wide instruction sets (see simd/target.h).
#pragma once

namespace tamiz::test {

/// Counts a failed check, and prints it unless many were printed before.
void fail(const char* file, int line, const char* condition, const char* context);

/// Failed checks of this run.
int failures();

}  // namespace tamiz::test

/// Records a failure where `condition` is false; `context` names the case.
#define CHECK(condition, context)                                                 \
  do {                                                                            \
    if (!(condition)) tamiz::test::fail(__FILE__, __LINE__, #condition, context); \
  } while (false)
