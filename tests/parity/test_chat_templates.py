"""Chat templates: the subset of Jinja gives what transformers gives, the built-in templates give what the models' own
formats are, and what is outside of the subset is refused by name.

Needs the program chat_parity: `ninja -C build/release chat_parity && pytest tests/parity/test_chat_templates.py`.
"""

import json
import subprocess

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

pytestmark = pytest.mark.one_process  # for the models' answers, which are made for all templates at once

CHATS = [
    [("user", "Hello"), ("assistant", "Hi there.")],
    [("system", "Be short."), ("user", " What is 2+2?\n"), ("assistant", "4"), ("user", "Sure?"), ("assistant", " Yes. \n")],
    [("user", "naïve 中文 🙂 {{ not a tag }} {% nor this %}"), ("assistant", "<|im_end|> 'quoted' \"twice\" \\n")],
    [("user", "only a question")],
    [("user", "a"), ("assistant", "<think>\nso\n</think>\n\nb"), ("user", "a"), ("assistant", "b"), ("user", "c"),
     ("assistant", "<think>\nwell\n</think>\n\nb")],
    [("user", "q"), ("assistant", "<think>s</think>a"), ("assistant", "b"), ("user", "z"), ("assistant", "end")],
    [("user", "q"), *[("assistant", f"<think>s</think>{c}") for c in "abcd"]],
]
IN_A_ROW = 2 * (len(CHATS) - 2)  # the row of the first of these, without a generation prompt

# In the manner of what models ship: white space control, namespaces, filters, tests, loops with conditions.
TEMPLATES = {
    "like_chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    "like_llama": """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|system|>" ~ system_message ~ "<|end|>" }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate') }}
    {%- endif %}
    {%- if message.role in ['user', 'tool'] %}
        {{- '<|' + message.role|upper + '|>\\n' + message['content'] | trim + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|bot|>' + message.content.strip() + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|bot|>' }}
{%- endif %}
""",
    "blocks": """{# a comment #}
{% set ns = namespace(found=false, count=0) %}
{% for m in messages if m.role != 'system' %}
  {% set ns.count = ns.count + 1 %}
  {% if not ns.found and m['role'] == 'user' %}
    {% set ns.found = true %}
first user at {{ loop.index }} of {{ loop.length }}: {{ m.content[:5] }}|{{ m.content[-3:] }}|{{ m.content|length }}
  {% endif %}
{{ loop.index0 }}{{ ' last' if loop.last else ' more' }} {{ m.role }}: {{ m.content | replace('a', 'AA') }}
{% else %}
nobody
{% endfor %}
count={{ ns.count }} {{ -ns.count // 2 }} {{ 7 % 3 }} {{ 2 * 3 + 1 }} {{ ns.count > 1 and 'many' or 'few' }}
{% for key, value in {'k': 1, 'j': 'two'}.items() %}{{ key }}={{ value|tojson }};{% endfor +%}
{{ missing is defined }} {{ bos_token is string }} {{ messages is iterable }} {{ none is none }} {{ missing | default('d') }}
{{ ['x', "y"] | join('-') }} {{ {'a': 1, 'b': [true, none, 1.5]} | tojson }} {{ 'a' in 'abc' }} {{ 'q' not in ['q'] }}
{{ ' s '.strip() }}|{{ 'a,b,,c'.split(',') | tojson }}|{{ 'x y  z'.split() | length }}|{{ 'Ab'.lower() }}{{ 'éa'[0] }}
{{ messages[-1].content.split('?')[0] }}{{ range(3) | list | tojson }}{{ 'ends'.endswith('ds') }} {{ "it's" }} {{ 'two' 'x' if false else 'y' }}
""".replace(" {{ 'two' 'x' if false else 'y' }}", ""),
    "qwen3": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "thoughts": """{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant
{% generation %}{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}<|im_end|>{% endgeneration %}

{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "marks": """{% set end = '</a>' %}{% for m in messages %}{% if m.role == 'assistant' %}<a>{%- generation -%}
    {% set end = '!' + end %}{% generation %}{{ m.content }}{% endgeneration %}{{ end }}
{%- endgeneration %}{{ end }}{% else %}{{ m.role }}: {{ m.content }}
{% endif %}{% endfor %}""",
    "whitespace": "  {%- if true -%}  a  {%- endif %}  \n\t{% if true %}\n b {% endif %}\n{{ 'c' }}\n  {#- x -#}  \n d {%+ if true %}e{% endif %}\n\n",
}

# The same program without marks: the answers are found from the messages.
TEMPLATES["unmarked"] = TEMPLATES["thoughts"].replace("{% generation %}", "").replace("{% endgeneration %}\n", "")

REFUSED = {
    "statement \"macro\" is not supported": "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1) }}",
    "statement \"include\" is not supported": "{% include 'x' %}",
    "filter \"selectattr\" is not supported": "{{ messages | selectattr('role') | list }}",
    "method \"format\" is not supported": "{{ '%s'.format(1) }}",
    "function \"cycler\" is not supported": "{{ cycler('a') }}",
    "expected a name": "{{ 1 + }}",
    "\"if\" without its end": "{% if true %}x",
    "\"endfor\" without its beginning": "x{% endfor %}",
    "\"generation\" without its end": "{% generation %}x",
    "\"endgeneration\" without its beginning": "x{% endgeneration %}",
    "expected \"endgeneration\", found \"endif\"": "{% if true %}{% generation %}x{% endif %}{% endgeneration %}",
    "is not closed": "{{ 'x }}",
    "more than": "{% for a in range(2000) %}{% for b in range(2000) %}{% endfor %}{% endfor %}",
    "makes a text of more than 8.0 MiB": "{% set ns = namespace(x='aaaaaaaa') %}{% for a in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "of an undefined value": "{{ nothing.at.all }}",
    "no namespace": "{% set messages.x = 1 %}",
    "nested more than": "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
    "nests values more than": "{% set ns = namespace(x=[]) %}{% for a in range(100) %}{% set ns.x = [ns.x] %}{% endfor %}",
    "looks at more than": "{% set ns = namespace(x=[1]) %}{% for a in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "division by zero": "{{ 1 // 0 }}",
    "the template refuses these messages: \"no\"": "{{ raise_exception('no') }}",
    "\"__mro__\" of an undefined value": "{{ ''.__class__.__mro__ }}",
}


def as_messages(chat):
    return [{"role": role, "content": content} for role, content in chat]


@pytest.fixture(scope="module")
def outputs(build_dir, tmp_path_factory):
    """Folder name -> our results, for every template at once."""
    directory = tmp_path_factory.mktemp("chats")
    chats = [{"messages": as_messages(chat), "add_generation_prompt": prompt} for chat in CHATS for prompt in (False, True)]
    templates = dict(TEMPLATES) | {f"refused{i}": text for i, text in enumerate(REFUSED.values())}
    for name in [*templates, "chatml", "llama2", "llama3", "zephyr", "mistral", "gemma", "nameless"]:
        (directory / name).mkdir()
        (directory / name / "chats.json").write_text(json.dumps(chats))
        if name in templates:
            config = {"chat_template": templates[name], "bos_token": "<s>", "eos_token": {"content": "</s>"}}
            (directory / name / "tokenizer_config.json").write_text(json.dumps(config))
    done = subprocess.run([build_dir / "tests/chat_parity", directory], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {path.parent.name: json.loads(path.read_text()) for path in directory.glob("*/ours.json")}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_subset_gives_what_transformers_gives(outputs, name):
    rows = iter(outputs[name])
    for chat in CHATS:
        for prompt in (False, True):
            ours = next(rows)
            try:
                theirs, _ = render_jinja_template([as_messages(chat)], chat_template=TEMPLATES[name], bos_token="<s>",
                                                  eos_token="</s>", add_generation_prompt=prompt)
            except Exception as error:
                assert "error" in ours and str(error) in ours["error"]
                continue
            if "error" in ours:  # rendered, but its beginnings are no beginnings
                assert name in ("blocks", "whitespace") and "cannot be told" in ours["error"]
                continue
            assert ours["text"] == theirs[0]


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_outside_is_refused_with_its_reason(outputs, reason):
    for ours in outputs[f"refused{list(REFUSED).index(reason)}"]:
        assert reason in ours["error"] and "\n" not in ours["error"]


def learned(row):
    text = row["text"].encode()
    return [text[begin:end].decode() for begin, end in row.get("learned", [])]


def test_an_answer_that_is_written_in_another_way_later_is_found(outputs):
    """Qwen 3 drops what the assistant thought from all but the last answer."""
    empty = "<think>\n\n</think>\n\n"
    assert learned(outputs["qwen3"][0]) == [f"{empty}Hi there.<|im_end|>\n"]
    assert learned(outputs["qwen3"][2]) == ["4<|im_end|>\n", f"{empty} Yes. \n<|im_end|>\n"]
    row = outputs["qwen3"][8]
    assert learned(row) == ["b<|im_end|>\n", "b<|im_end|>\n", "<think>\nwell\n</think>\n\nb<|im_end|>\n"]
    assert [row["text"][:begin].count("<|im_start|>assistant") for begin, _ in row["learned"]] == [1, 2, 3]


def test_two_answers_in_a_row_are_found(outputs):
    """The template writes an answer in another way once others follow it."""
    answers = ["a<|im_end|>", "b<|im_end|>", "end<|im_end|>"]
    assert learned(outputs["thoughts"][IN_A_ROW]) == answers
    assert learned(outputs["unmarked"][IN_A_ROW]) == [answer + "\n" for answer in answers]
    assert learned(outputs["unmarked"][IN_A_ROW + 2]) == ["a<|im_end|>\n", "b<|im_end|>\n", "c<|im_end|>\n",
                                                          "<think>s</think>d<|im_end|>\n"]


@pytest.mark.parametrize("name", ["thoughts", "marks"])
def test_the_marks_of_a_template_say_what_is_learned(outputs, name):
    """As transformers' assistant mask has it."""
    for i, chat in enumerate(CHATS):
        texts, marks = render_jinja_template([as_messages(chat)], chat_template=TEMPLATES[name],
                                             return_assistant_tokens_mask=True)
        ranges = [(begin, end) for begin, end in marks[0] if end > begin]
        outermost = [one for one in ranges if not any(o != one and o[0] <= one[0] and one[1] <= o[1] for o in ranges)]
        assert learned(outputs[name][2 * i]) == [texts[0][begin:end] for begin, end in outermost], chat


def test_built_in_templates_learn_the_assistants_turns(outputs):
    assert learned(outputs["chatml"][2]) == ["4<|im_end|>\n", " Yes. \n<|im_end|>\n"]
    assert learned(outputs["llama3"][2]) == ["4<|eot_id|>", "Yes.<|eot_id|>"]
    assert learned(outputs["zephyr"][2]) == ["4</s>\n", " Yes. \n</s>\n"]
    assert learned(outputs["llama2"][2]) == [" 4 </s>", "  Yes. \n </s>"]
    assert learned(outputs["mistral"][0]) == [" Hi there.</s>"]
    assert learned(outputs["gemma"][0]) == ["Hi there.<end_of_turn>\n"]
    assert all(learned(outputs[name][6]) == [] for name in ("chatml", "llama3", "zephyr"))
    assert "only the roles user and assistant" in outputs["mistral"][2]["error"]


def test_built_in_templates_are_the_models_formats(outputs):
    assert outputs["chatml"][2]["text"].startswith(
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n What is 2+2?\n<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n")
    assert outputs["llama3"][0]["text"] == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHi there.<|eot_id|>")
    assert outputs["llama3"][1]["text"].endswith("<|start_header_id|>assistant<|end_header_id|>\n\n")
    assert outputs["llama2"][2]["text"].startswith(
        "<s>[INST] <<SYS>>\nBe short.\n<</SYS>>\n\n What is 2+2?\n [/INST] 4 </s><s>[INST] Sure? [/INST]")
    assert outputs["mistral"][0]["text"] == "<s>[INST] Hello [/INST] Hi there.</s>"
    assert outputs["gemma"][1]["text"].endswith("<start_of_turn>model\n")
    assert "unknown chat template \"nameless\"; the built-in ones are chatml, llama2" in outputs["nameless"][0]["error"]
