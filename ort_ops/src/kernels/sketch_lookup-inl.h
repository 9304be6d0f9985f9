// The scan of sketch-inl.h by tables: queries of few bits, 16 keys at a time.
//
//   sum_d q_d t_d = sum_g T_g[n_g],   n_g the 4 bits of the key in group g (d = 4 g .. 4 g + 3)
//   binary   T_g[n] = sum_i (bit i of n ? q_(4 g + i) : -q_(4 g + i))
//   ternary  the same of both planes, T_g[n] = +-sum_i (bit i of n) q_(4 g + i)
//
// Entries are at most 28 in size and kept as unsigned bytes, 28 more than they are; four of them
// add up without overflow. Bytes are shuffled so that 16 keys lie side by side, in lane l of a
// vector with bits 16 l .. of a word: there the tables of its groups are.
//
// Included once per target that has byte permutations, after sketch_scan-inl.h.

constexpr int kLookupBits = 4;  // of a query at most
constexpr int kEntryOffset = 28;
constexpr int kSteps = 4;  // groups of a lane

/// The integers of a query in word `w`, one a byte.
inline __m512i query_bytes(const SketchQuery& q, int64_t query_bits, int64_t words, int64_t w) {
  __m512i value = _mm512_setzero_si512();
  for (int64_t i = 0; i < query_bits; ++i) {
    const int weight = i == query_bits - 1 ? -(1 << i) : 1 << i;
    const __m512i each = _mm512_set1_epi8(static_cast<char>(weight));
    value = _mm512_mask_add_epi8(value, q.planes[i * words + w], value, each);
  }
  return value;
}

/// The tables of step `step` in the lanes of a word; `sign` is that of its plane, 0 of binary.
inline __m512i lookup_table(__m512i query, int step, int sign) {
  constexpr uint64_t kBit[] = {0xaaaaaaaaaaaaaaaau, 0xccccccccccccccccu, 0xf0f0f0f0f0f0f0f0u,
                               0xff00ff00ff00ff00u};
  __m512i table = _mm512_set1_epi8(kEntryOffset);
  for (int i = 0; i < 4; ++i) {
    const __m512i q = _mm512_shuffle_epi8(query, _mm512_set1_epi8(static_cast<char>(4 * step + i)));
    if (sign <= 0) table = _mm512_mask_sub_epi8(table, sign ? kBit[i] : ~kBit[i], table, q);
    if (sign >= 0) table = _mm512_mask_add_epi8(table, kBit[i], table, q);
  }
  return table;
}

/// Nibbles `step` of the lanes, of 16 words: lane l of the result has those of bits 16 l ..
struct Nibbles {
  __m512i step[kSteps];
};
inline Nibbles nibbles(Words low, Words high) {
  const __m512i by_byte = _mm512_set_epi8(
      63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29, 21, 13, 5,
      60, 52, 44, 36, 28, 20, 12, 4, 59, 51, 43, 35, 27, 19, 11, 3, 58, 50, 42, 34, 26, 18, 10, 2,
      57, 49, 41, 33, 25, 17, 9, 1, 56, 48, 40, 32, 24, 16, 8, 0);
  const __m512i a = _mm512_permutexvar_epi8(by_byte, low);
  const __m512i b = _mm512_permutexvar_epi8(by_byte, high);
  const __m512i even = _mm512_unpacklo_epi64(a, b);
  const __m512i odd = _mm512_unpackhi_epi64(a, b);
  const __m512i mask = _mm512_set1_epi8(15);
  const auto first = [&](__m512i x) { return _mm512_and_si512(x, mask); };
  const auto second = [&](__m512i x) { return first(_mm512_srli_epi16(x, 4)); };
  return {{first(even), second(even), first(odd), second(odd)}};
}

/// Sums of every four bytes that lie 16 apart, added to `sum`.
inline __m512i add_lanes(__m512i sum, __m512i bytes) {
  const __m512i by_key = _mm512_set_epi8(
      63, 47, 31, 15, 62, 46, 30, 14, 61, 45, 29, 13, 60, 44, 28, 12, 59, 43, 27, 11, 58, 42, 26,
      10, 57, 41, 25, 9, 56, 40, 24, 8, 55, 39, 23, 7, 54, 38, 22, 6, 53, 37, 21, 5, 52, 36, 20, 4,
      51, 35, 19, 3, 50, 34, 18, 2, 49, 33, 17, 1, 48, 32, 16, 0);
  return _mm512_dpbusd_epi32(sum, _mm512_permutexvar_epi8(by_key, bytes), _mm512_set1_epi8(1));
}

/// Scans 16 keys at a time for one query after the other; returns how many keys that were.
template <int W, int P>
inline int64_t scan_by_tables(const SketchScanArgs& a) {
  constexpr int kRow = 2 * W * P + 1;
  constexpr int kAhead = 128;  // keys
  constexpr int kMostQueries = 16;
  if (a.query_bits > kLookupBits || a.query_count > kMostQueries) return 0;
  __m512i table[kMostQueries][W * P * kSteps];
  for (int64_t i = 0; i < a.query_count; ++i) {
    for (int w = 0; w < W * P; ++w) {
      const __m512i query = query_bytes(a.queries[i], a.query_bits, W, w % W);
      const int sign = P == 1 ? 0 : w < W ? 1 : -1;
      for (int s = 0; s < kSteps; ++s) table[i][w * kSteps + s] = lookup_table(query, s, sign);
    }
  }
  int64_t key = 0;
  for (; key + kLanes <= a.keys; key += kLanes) {
    const float* row = a.rows + key * kRow;
    for (int i = 0; i < kLanes * kRow; i += 16) __builtin_prefetch(row + kAhead * kRow + i);
    Nibbles n[W * P];
    for (int w = 0; w < W * P; ++w) {
      n[w] = nibbles(Rows<kRow>::words(row + 2 * w),
                     Rows<kRow>::words(row + kLanes / 2 * kRow + 2 * w));
    }
    const Vec gamma = Rows<kRow>::floats(row + kRow - 1);
    for (int64_t i = 0; i < a.query_count; ++i) {
      __m512i dot = _mm512_set1_epi32(-kEntryOffset * 16 * W * P);
      for (int w = 0; w < W * P; ++w) {
        const __m512i* t = table[i] + w * kSteps;
        const __m512i* step = n[w].step;
        const __m512i front =
            _mm512_add_epi8(_mm512_shuffle_epi8(t[0], step[0]), _mm512_shuffle_epi8(t[1], step[1]));
        const __m512i back =
            _mm512_add_epi8(_mm512_shuffle_epi8(t[2], step[2]), _mm512_shuffle_epi8(t[3], step[3]));
        dot = add_lanes(dot, _mm512_add_epi8(front, back));
      }
      store_scores(a.scores + i * a.stride + key,
                   gamma * _mm512_cvtepi32_ps(dot) * broadcast(a.queries[i].scale));
    }
  }
  return key;
}
