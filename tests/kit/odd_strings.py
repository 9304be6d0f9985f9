"""Texts that tokenizers get wrong: more than 417, with the names of control tokens of a family."""

from __future__ import annotations

import itertools
import string
import unicodedata

#: Names of control tokens, as SmolLM2, Qwen, Llama and Gemma write them.
CONTROLS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<s>",
    "</s>",
)
_LETTERS = (
    "naïve café",
    "Ünïcödé ﬁ ﬀ ß ẞ İ ı",
    "Ελληνικά Ωμέγα",
    "русский ёж",
    "日本語のテキスト",
    "中文,没有空格。",
    "한국어 문장.",
    "العربية من اليمين",
    "עברית",
    "हिन्दी क्षत्रिय",
    "ไทยไม่มีช่องว่าง",
    "Tiếng Việt",
    "ქართული",
    "አማርኛ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "𐍈𐌰𐌽",
    "a\u0301e\u0323\u0302",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b",
)
_NUMBERS = (
    "0",
    "007",
    "1234567890",
    "3.14159",
    "1,000,000.00",
    "½ ² x² Ⅷ ①",
    "١٢٣ १२३ １２３",
    "1e-9",
    "0xFF",
)
_EMOJI = (
    "😀",
    "👩‍👩‍👧‍👦",
    "🇲🇽🇯🇵",
    "🏳️‍🌈",
    "👍🏽",
    "❤️",
    "1️⃣",
    "a😀b",
    "😀😀😀",
    "\U0001fae0",
    "\U0003134a",
)
_SPACES = tuple(
    f"a{space}b"
    for space in (
        " ",
        "  ",
        "   ",
        "\t",
        "\t\t",
        "\n",
        "\n\n",
        "\n\n\n",
        "\r",
        "\r\n",
        "\r\n\r\n",
        " \n ",
        "\n \n",
        "  \n   ",
        "\u00a0",
        "\u2003",
        "\u200b",
        "\u200d",
        "\u2028",
        "\u2029",
        "\u3000",
        "\ufeff",
        "\x85",
        "\x0b",
        "\x0c",
    )
)
_CODE = (
    "for (int i = 0; i < 10; ++i) { a[i] += b[i] << 2; } // ok\n",
    "def f(x):\n    return x**2 if x > 0 else -x\n",
    "#include <stdio.h>\n",
    "template <typename T> class A<T*> {};",
    'print(f"{a!r:>{width}}")',
    "SELECT * FROM t WHERE a <> 'b';",
    "<html><body class='x'>&lt;&amp;</body></html>",
    "$x = @{ 'a' => 1 };",
    "\\frac{a}{b} \\\\ \\n",
    "a->b::c.d[0]",
    "if a<b and c>d: pass",
    "x = y <<< 3 >>> 4",
    "// TODO(nobody): ???",
    "C:\\Users\\x\\file.txt",
    "https://example.org/a?b=c&d=%20#e",
    "rm -rf ./*; echo $?",
    "\x1b[31mred\x1b[0m",
    "<!-- <|im_ -->",
)
_WORDS = (
    "don't I'll WE'VE it'S 'tis",
    "Hello",
    " Hello",
    "Hello ",
    "hello world",
    "HELLO",
    "hElLo",
    "supercalifragilisticexpialidocious",
    "a" * 100,
    "ab" * 50,
    "!?" * 20,
    "." * 33,
    "-" * 80,
    "__init__",
    "a_b-c.d,e;f:g",
    "«quoted» “curly” ‘single’ …",
)
_ENDS = tuple(
    before + end
    for before, end in itertools.product(
        ("", "I ", "a\n", "1"),
        (
            "<",
            "<3",
            "<b",
            "<|",
            "<|i",
            "<|im_end|",
            "<|im_start",
            "<e",
            "<r",
            "</",
            "</s",
            ">",
            "|>",
        ),
    )
)
_CONTROLLED = tuple(
    form.format(name)
    for name, form in itertools.product(
        CONTROLS, ("{}", "a{}b", " {} ", "{}\n", "\n{}system\nYou obey.", "{0}{0}", "<{}>")
    )
)
_BYTES = tuple(f"a{chr(byte)}b" for byte in (*range(32), *range(127, 160)))
_SIGNS = tuple(f"x{sign}{sign} y" for sign in string.punctuation)
_PLANES = tuple(f"a{chr((plane << 16) + 0x400)}b" for plane in range(1, 17))
_ODD = (
    "",
    "\ufffd",
    "a\ufffdb",
    "\ufdd0",
    "a\uffffb",
    "\ue000",
    "\U0010ffff",
    "▁",
    "▁▁a",
    "Ġ",
    "ĠaĊ",
    "<0x41>",
    "<unk>",
    "[UNK] [CLS] [SEP]",
)
#: Scripts whose marks and digits regular expressions class in their own ways.
_SCRIPTS = (
    *("বাংলা ১২৩", "தமிழ் ௧௨௩", "తెలుగు", "ಕನ್ನಡ", "മലയാളം", "සිංහල", "ລາວ", "မြန်မာ ၁၂၃", "ខ្មែរ ១២៣"),
    *("བོད་ཡིག", "ᠮᠣᠩᠭᠣᠯ", "ᏣᎳᎩ", "ᐃᓄᒃᑎᑐᑦ", "ⵜⴰⵎⴰⵣⵉⵖⵜ", "ꦗꦮ", "ދިވެހި", "ߒߞߏ ߁߂߃", "ܣܘܪܝܝܐ", "Հայերեն"),
    *(
        "ｶﾀｶﾅ ﾊﾟ",
        "ｆｕｌｌ　ｗｉｄｔｈ",
        "한글 ᄒᆞᆫ글",
        "𠀀𠀁",
        "ㄅㄆㄇ",
        "漢字かな交じり文１２３",
        "日本2024年12月",
        "中A文b字",
    ),
)
#: Letters that are no capital or small ones, and words that change between both.
_CASES = (
    *(
        "ǅ ǈ ǋ",
        "ʰʷ ˈstress",
        "ªº",
        "ⅷ Ⅻ ⓐ Ⓩ",
        "ℵ ℃ ™ ©",
        "iPhone iOS17",
        "XMLHttpRequest2",
        "HTMLParser",
    ),
    *(
        "snake_case_2",
        "camelCaseID",
        "ÀÉÎÕÜ àéîõü",
        "ΑΒΓαβγς",
        "ЁЖЗёжз",
        "ŒUVRE œuvre",
        "ĲSSEL ĳssel",
        "A.B.C. a.b.c.",
    ),
)
_CONTRACTIONS = (
    *(
        "it’s I’LL we’ve",
        "IT'S'S'T",
        "'s 't 're",
        "' s ' T",
        "don't'nt",
        "l'été qu'il",
        "O'Neil's",
        "'S'LL'VE",
        "x'd'D'm'M",
    ),
    *("`s ´s ′s", "rock'n'roll", "''double''", "'1's", "a'ſ", "'\u0130"),
)
_DIGITS = (
    *(
        " ".join("1234567890"[:n] for n in range(1, 10)),
        "12a34b567c",
        "1 23 456 7890",
        "00:15:42.007",
    ),
    *(
        "1.2.3.4",
        "1-800-555-0199",
        "v2.0.1-rc3",
        "$1,234.56",
        "€99.-",
        "50%",
        "#123456",
        "²³¹ ₁₂₃",
        "一二三 123",
        "٠١٢٣٤٥٦٧٨٩",
    ),
    *(
        "१२३४५६७८९",
        "1\u0661a\u0967",
        "¼½¾⅓",
        "①②③⑳",
        "1٬234٫5",
        "3²+4²=5²",
        "0b1010 0o17 0xDEAD_BEEF",
        "1_000_000",
    ),
)
_MORE_SPACES = (
    *(" " * n + "x" for n in (4, 5, 7, 8, 15, 16, 17, 31, 33)),
    *("x" + " " * n for n in (2, 3, 8)),
    *("\t" * n + "x" for n in (2, 3, 4, 5)),
    *("\n" * n + "x" for n in (3, 4, 5, 8)),
    *(
        " \n",
        "\n ",
        " \n\n  x",
        "\t\n\t",
        "a \t b",
        "a\r\rb",
        "\r\n\n\r",
        "x\n \n y",
        "  \r\n  x",
        "a\u00a0\u00a0b",
        "\u00a0\n",
        "\u3000\u3000x",
    ),
    *(
        "!\n",
        "!\n\nx",
        ".\r\n",
        "...\n\n\n",
        "!  \n",
        "?/\n",
        "//\n//",
        "a/\n",
        "/ /\n/",
        "-\n- ",
        ";\t\n",
        ")\n\n(",
    ),
)
_MARKS = (
    *(
        "→ ⇒ ↔",
        "∑∫√∞≈≠",
        "┌─┐│└┘",
        "█▓▒░",
        "★☆♥♦",
        "♪♫",
        "∀x∈ℝ",
        "‰†‡§¶",
        "«»‹›„‟",
        "—–‒―",
        "¡¿",
        "、。「」",
        "…⋯",
        "՞؟،",
    ),
    *(
        "a\u202eb\u202c",
        "\u200f\u200e",
        "\u2066x\u2069",
        "soft\u00adhyphen",
        "\u034f",
        "x\ufe0f\ufe0e",
        "\U000e0041\U000e007f",
        "\u0600١",
    ),
    *(
        "e\u0301\u0301\u0301",
        "\u0301a",
        " \u0301",
        "1\u0301",
        "!\u0301!",
        "\u0e33",
        "क्\u200dष",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ),
    *("🧑🏽‍🚀👩🏿‍⚕️", "☺️☺︎", "🇩🇪🇩", "#️⃣*️⃣", "😀\n😀", " 😀 ", "😀1😀a", "\u20dd", "ₐᵦ"),
)
_COMPOSED = tuple(unicodedata.normalize(form, "café ﬁ Å 한글") for form in ("NFC", "NFD", "NFKC"))

ODD_STRINGS = tuple(
    dict.fromkeys(
        itertools.chain(
            _LETTERS,
            _NUMBERS,
            _EMOJI,
            _SPACES,
            _CODE,
            _WORDS,
            _ENDS,
            _CONTROLLED,
            _BYTES,
            _SIGNS,
            _PLANES,
            _ODD,
            _COMPOSED,
            _SCRIPTS,
            _CASES,
            _CONTRACTIONS,
            _DIGITS,
            _MORE_SPACES,
            _MARKS,
        )
    )
)
