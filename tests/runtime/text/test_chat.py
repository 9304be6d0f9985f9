import datetime
import resource
import sys
from typing import Any

import psutil
import pytest

from tamiz.files.errors import TamizError
from tamiz.runtime.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


def render(template, messages=MESSAGES, **settings) -> str:
    return ChatTemplate({"chat_template": template, **settings}).render(messages)


def test_messages_and_special_tokens_reach_the_template() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    assert render(template, **settings) == "<s>[user] hi</s>[assistant]"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% if tools is not none %}TOOLS{% endif %}", ""),
        ("{% if documents is not none %}DOCS{% endif %}", ""),
        ("{% if tools is defined %}yes{% endif %}", "yes"),
        ("{{ sep_token }}{{ cls_token }}{{ mask_token }}", "[SEP][CLS]"),
        ("{% if mask_token is defined %}yes{% endif %}", ""),
        ("{% generation %}a{% set x = 1 %}{% endgeneration %}b{{ x }}", "ab"),
        ("{%- generation -%} {{ messages[0].content }} {%- endgeneration -%}", "hi"),
        ("{% set n = namespace(a=1, self=2) %}{% set n.a = 3 %}{{ n.a + n.self }}", "5"),
        ("{{ {'b': 'é', 'a': 1} | tojson }}", '{"b": "é", "a": 1}'),
        ("{{ {'b': 'é<', 'a': 1} | tojson(True) }}", '{"b": "\\u00e9<", "a": 1}'),
        (
            "{{ {'b': 'é', 'a': [1]} | tojson(ensure_ascii=False, separators=(',', ':'),"
            " sort_keys=True, indent=2) }}",
            '{\n  "a":[\n    1\n  ],\n  "b":"é"\n}',
        ),
        ("{{ messages[0].content if enable_thinking is not defined }}", "hi"),
    ],
)
def test_templates_have_the_environment_of_transformers(template: str, expected: str) -> None:
    """Values of apply_chat_template of transformers 5.24 for the same template and tokens."""
    assert render(template, sep_token="[SEP]", cls_token={"content": "[CLS]"}) == expected


def test_a_name_that_belongs_to_python_is_refused() -> None:
    with pytest.raises(TamizError, match="'__class__' of a namespace is unsafe"):
        render("{% set n = namespace(**{'__class__': 1}) %}")


def test_variables_and_tools_reach_the_template() -> None:
    template = ChatTemplate(
        {"chat_template": "{{ tools | length if tools }} {{ thinking }} {{ documents | length }}"}
    )
    variables = {"thinking": False, "documents": [{"text": "a"}]}
    assert template.render(MESSAGES, [{"name": "f"}], variables) == "1 False 1"
    assert template.render(MESSAGES, variables={"documents": []}) == "  0"
    with pytest.raises(TamizError, match="messages is no variable of a chat template"):
        template.render(MESSAGES, variables={"messages": []})
    with pytest.raises(TamizError, match="a value for the chat template is no JSON"):
        template.render(MESSAGES, variables={"thinking": {1, 2}})


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}, "three"]


def test_parts_of_a_content_are_joined_unless_the_template_reads_them() -> None:
    """The line break between parts is llama.cpp's and vLLM's."""
    messages = [{"role": "user", "content": PARTS}]
    assert render("{{ messages[0].content | upper }}", messages) == "ONE\nTWO\nTHREE"
    reads = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
    )
    assert render(reads, messages) == "<one><two><three>"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": 3},
        {"role": "user", "content": [{"type": "image_url", "image_url": "a"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [None]},
        {"role": None, "content": "hi"},
        {"content": "hi"},
        "hi",
        None,
    ],
)
def test_a_message_without_text_is_refused(message: Any) -> None:
    with pytest.raises(TamizError, match=r"message 1.* expected "):
        render("{{ messages[1].content }}", [*MESSAGES, message])


def test_a_call_of_a_tool_needs_no_text() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    template = "{{ messages[1].content is defined }} {{ messages[1].tool_calls[0].name }}"
    assert render(template, [*MESSAGES, call]) == "False f"


def test_the_history_is_rendered_in_order(tokenizer) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    assert ChatTemplate(tokenizer.settings).render(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
        "<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_blocks_are_trimmed_as_transformers_does() -> None:
    assert render("{% if true %}\na\n    {% endif %}\nb") == "a\nb"


def test_loops_can_be_left() -> None:
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )


def test_values_can_be_written_as_json() -> None:
    assert render("{{ messages | tojson }}", [{"role": "user", "content": "<é>"}]) == (
        '[{"role": "user", "content": "<é>"}]'
    )


def test_the_date_can_be_asked_for() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)


def test_the_date_can_be_fixed() -> None:
    template = "{{ strftime_now('%d %B %Y, %H:%M:%S.%f') }}"
    fixed = ChatTemplate({"chat_template": template}, datetime.datetime(2024, 7, 9, 12, 30))
    assert fixed.render(MESSAGES) == "09 July 2024, 12:30:00.000000"


def test_the_default_of_several_templates_is_taken() -> None:
    named = [{"name": "tool", "template": "no"}, {"name": "default", "template": "yes"}]
    assert render(named) == "yes"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ ''.__class__ }}",
        "{{ ''|attr('__class__') }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template) -> None:
    with pytest.raises(TamizError, match=r"chat_template: .*unsafe"):
        render(template)


def test_what_the_template_refuses_is_told() -> None:
    with pytest.raises(TamizError, match="chat_template: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_malformed_template_is_refused() -> None:
    with pytest.raises(TamizError, match="chat_template: "):
        render("{% for %}")


def test_an_expression_that_fails_is_refused() -> None:
    with pytest.raises(TamizError, match="chat_template: "):
        render("{{ 1 // 0 }}")


@pytest.mark.parametrize("template", [None, 3, [5], [{"name": "tool", "template": "no"}]])
def test_a_model_without_template_cannot_chat(template) -> None:
    with pytest.raises(TamizError, match="has no chat_template"):
        ChatTemplate({"chat_template": template})


LIST = "[" + "0," * 200 + "]"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3, "takes more than 0.2 s"),
        (f"{{% for a in {LIST} %}}" * 6 + "{% endfor %}" * 6, "takes more than 0.2 s"),
        (
            "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
            "nested too deeply|takes more",
        ),
        (
            "{% set n = namespace(x='x') %}"
            "{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "takes more",
        ),
        ("{{ 'x' * 10 ** 11 }}", "takes more than 64 MB"),
        ("{{ 'x'.ljust(10 ** 11) }}", "takes more than 64 MB"),
        ("{{ '%99999999999d' % 1 }}", "takes more than 64 MB"),
        ("{{ 2 ** (10 ** 10) }}", "takes more than|exceeds the limit"),
        ("{{ 7 ** (10 ** 8) % 10 }}", "takes more than 0.2 s"),
        ("{% set a = 10 ** 8 %}{{ 7 ** a % 10 }}", "takes more than 0.2 s"),
        ("{{ 'a' * 1000000000 }}", "takes more than 64 MB"),
        ("{{ [0] * 10 ** 12 }}", "takes more than 64 MB"),
        ("{{ ('a' * 10 ** 7) | replace('a', 'a' * 10 ** 4) }}", "takes more than"),
        ("{{ 'a'.center(10 ** 12) | length }}", "takes more than 64 MB"),
        ("{{ range(10 ** 5) | list | string * 10 ** 6 }}", "takes more than"),
    ],
)
def test_a_template_that_takes_too_much_is_ended(template, reason, monkeypatch) -> None:
    monkeypatch.setattr("tamiz.runtime.text.chat_template._SECONDS", 0.2)
    monkeypatch.setattr("tamiz.runtime.text.chat_template._MEMORY", 64 << 20)
    with pytest.raises(TamizError, match=reason):
        render(template)


NESTED = {
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "not": "{{ " + "not " * 20000 + "1 }}",
    "if": "{% if 1 %}" * 500 + "{% endif %}" * 500,
    "for": "{% for i in [1] %}" * 50 + "{% endfor %}" * 50,
    "sum": "{{ messages" + " + 1" * 20000 + " }}",
    "power": "{{ 2" + " ** 2" * 5000 + " }}",
    "attributes": "{{ messages" + ".a" * 20000 + " }}",
}


@pytest.mark.parametrize("name", NESTED)
def test_a_deeply_nested_template_costs_one_sentence(name) -> None:
    with pytest.raises(TamizError, match="chat_template: ") as error:
        render(NESTED[name])
    assert len(str(error.value)) < 1200


def test_a_prompt_has_a_longest_length() -> None:
    with pytest.raises(TamizError, match="writes 20971520 characters, expected at most 16777216"):
        render("{{ 'x' * (20 * 2 ** 20) }}")


#: Messages with a number where text is expected.
COUNTS: Any = [{"role": "user", "content": "", "n": n} for n in (2, 3, 10**11, 4)]


def test_one_process_renders_all_turns_and_an_ended_one_is_replaced() -> None:
    source = "{{ 'x' * messages[0].n }}{% if messages[0].n < 0 %}{{ 7 ** 10 ** 9 }}{% endif %}"
    template = ChatTemplate({"chat_template": source})
    two, three, endless, four = ([message] for message in COUNTS)
    assert template.render(two) == "xx"
    first = _children()
    assert template.render(three) == "xxx"
    assert _children() == first
    with pytest.raises(TamizError, match="takes more than"):
        template.render(endless)
    assert template.render(four) == "xxxx"
    del template
    assert first.isdisjoint(_children())


def _children() -> set[int]:
    """Processes that render templates."""
    own = psutil.Process().children()
    live = (child for child in own if child.status() != psutil.STATUS_ZOMBIE)
    return {child.pid for child in live if "tamiz.runtime.text.template_child" in child.cmdline()}


def test_this_process_is_not_limited() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS), sys.gettrace()
    assert render("fine") == "fine"
    assert (resource.getrlimit(resource.RLIMIT_AS), sys.gettrace()) == before
