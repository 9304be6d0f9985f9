"""The benchmark of ARM's products reads what objdump and QEMU print."""

from benchmarks.kernels import mca

LISTING = """
/tmp/tamiz:     file format elf64-littleaarch64

0000000000400680 <measured>:
  400680:\tsdot\tv2.4s, v16.16b, v10.4b[2]
  400684:\tb.ne\t400680 <measured>  // b.any
  400688:\tret

0000000000400690 <finished>:
  400690:\tnop
"""
LOG = """\
Trace 0: 0x7fc2a6600100 [0000000001009331/0000000000400700/00000001/00000201] main
Trace 0: 0x7fc2a6600100 [0000000001009331/0000000000400680/00000001/00000201] measured
Linking TBs 0x7fc2a6600100 index 0 -> 0x7fc2a6600200
Trace 0: 0x7fc2a6600200 [0000000001009331/0000000000400684/00000001/00000201] measured
Trace 0: 0x7fc2a6600300 [0000000001009331/0000000000400690/00000001/00000201] finished
"""


def test_only_what_is_between_both_functions_counts() -> None:
    by_address, functions = mca.instructions(LISTING)
    assert functions == {"measured": 0x400680, "finished": 0x400690}
    lines = [by_address[address] for address in mca.traced(LOG, functions)]
    assert lines == ["sdot\tv2.4s, v16.16b, v10.4b[2]", "b.ne\t400680"]
    assert [bool(mca.BRANCH.fullmatch(line.split()[0])) for line in lines] == [False, True]


def test_each_format_is_compared_on_both_levels() -> None:
    found = {(product.level, product.form, product.program) for product in mca.products()}
    programs = ("tamiz", "llama_cpp")
    assert found == {
        (level, form, program)
        for level in mca.LEVELS
        for form in mca.FORMATS
        for program in programs
    }
