#include "ops/attention/segments.h"

#include <string>

#include "base/shapes.h"

namespace tamiz {
namespace {

// Columns of `sequences`.
constexpr int64_t kPast = 0, kTokens = 1, kPages = 2;
/// In place of a number of tokens: one token, which is a decode step.
constexpr int64_t kStep = -1;

int64_t tokens_of(const int64_t* row) { return row[kTokens] == kStep ? 1 : row[kTokens]; }

void check_pages(int64_t row, const int64_t* pages, int64_t count, int64_t most) {
  for (int64_t i = 0; i < count; ++i) {
    if (pages[i] >= 0 && pages[i] < most) continue;
    throw Error("sequences has page " + std::to_string(pages[i]) + " in row " +
                std::to_string(row) + ", expected 0 to " + std::to_string(most - 1) +
                ", as the cache has " + std::to_string(kPageKeys) + " rows a page");
  }
}

}  // namespace

int64_t check_sequences(const Tensor& sequences, int64_t batch, int64_t tokens, int64_t capacity) {
  expect_rank("sequences", sequences, 2, "segments, past and tokens and pages");
  const int64_t width = sequences.shape.dims[1];
  if (width < kPages) {
    throw Error("sequences has " + std::to_string(width) +
                " columns, expected past, tokens and pages");
  }
  if (!sequences.data) throw Error("sequences is computed, expected an input of the node");
  if (batch != 1)
    throw Error("q has batch " + std::to_string(batch) + ", expected 1 for sequences");
  int64_t keys = 0, sum = 0;
  for (int64_t i = 0; i < sequences.shape.dims[0]; ++i) {
    const int64_t* row = sequences.as<int64_t>() + i * width;
    const int64_t room = (width - kPages) * kPageKeys, count = tokens_of(row);
    if (row[kPast] < 0 || count < 1 || count > tokens || row[kPast] > room - count) {
      throw Error("sequences has past " + std::to_string(row[kPast]) + " and " +
                  std::to_string(row[kTokens]) + " tokens in row " + std::to_string(i) +
                  ", expected at least one token and at most " + std::to_string(room) +
                  " keys in its pages");
    }
    const int64_t end = row[kPast] + count;
    check_pages(i, row + kPages, divide_up(end, kPageKeys), capacity / kPageKeys);
    keys = std::max(keys, end);
    sum += count;
  }
  if (sum == tokens) return keys;
  throw Error("sequences has " + std::to_string(sum) + " tokens, expected those of q, " +
              std::to_string(tokens));
}

void Segments::fill(int64_t index, Segment& s) const {
  if (in_pages(sequences_)) {
    const int64_t* row = sequences_.as<int64_t>() + index * sequences_.shape.dims[1];
    s.past = row[kPast];
    s.tokens = tokens_of(row);
    s.step = row[kTokens] == kStep;
    s.pages = row + kPages;
  } else {
    s.sequence = index;
    s.past = shape_.past;
    s.tokens = shape_.tokens;
    s.step = s.tokens == 1;
  }
  s.rows = s.tokens * shape_.group;
  s.tile = s.rows <= kFewRows ? kFewRows : tile_rows_;
  s.tiles = divide_up(s.rows, s.tile);
}

}  // namespace tamiz
