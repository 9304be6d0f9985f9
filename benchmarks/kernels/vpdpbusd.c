/* What VPDPBUSD alone reaches: 12 sums in registers, which hide its latency. */
#define DOT(sum) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #sum "\n\t"

/* Returns the operations of `rounds` rounds; a multiplication and an addition are two. */
double vpdpbusd(long rounds) {
  const double operations = 12.0 * 64 * 2 * rounds;
  __asm__ volatile(
      "1:\n\t" DOT(0) DOT(1) DOT(2) DOT(3) DOT(4) DOT(5) DOT(6) DOT(7) DOT(8) DOT(9) DOT(10) DOT(11)
      "dec %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(rounds)
      :
      : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
        "xmm11", "cc");
  return operations;
}
