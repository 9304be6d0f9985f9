# %% [markdown]
# # A tamiz bundle in optimum
#
# A bundle has optimum's layout, so `ORTModelForCausalLM` loads it like any other folder. The only
# line of tamiz is the one that registers its operators. Run the cells in a notebook, or the file:
#
#     pip install "optimum-onnx[onnxruntime]" transformers torch tamiz-ops
#     python examples/optimum_notebook.py small
#
# Bundles whose techniques keep state of their own, such as kv-int8, need another host.

# %%
import os
import sys

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort
from optimum.onnxruntime import ORTModelForCausalLM
from transformers import AutoTokenizer

import tamiz_ops

BUNDLE = sys.argv[1] if len(sys.argv) > 1 else "small"

# %% [markdown]
# ## Load

# %%
options = ort.SessionOptions()
options.log_severity_level = 3  # a warning says that logits_to_keep has a default: intended
tamiz_ops.register(options)
model = ORTModelForCausalLM.from_pretrained(BUNDLE, session_options=options)
tokenizer = AutoTokenizer.from_pretrained(BUNDLE)

# %% [markdown]
# ## Generate

# %%
inputs = tokenizer("The capital of France is", return_tensors="pt")
outputs = model.generate(**inputs, max_new_tokens=16, do_sample=False)
print(tokenizer.decode(outputs[0]))

# %% [markdown]
# ## A chat
#
# `apply_chat_template` takes the template from `tokenizer_config.json`.

# %%
if tokenizer.chat_template:
    messages = [{"role": "user", "content": "What is a sieve?"}]
    chat = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    outputs = model.generate(**chat, max_new_tokens=32, do_sample=False)
    print(tokenizer.decode(outputs[0, chat["input_ids"].shape[1] :], skip_special_tokens=True))
