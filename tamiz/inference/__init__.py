"""The door for programs: load a bundle, generate, stream, chat, batch, embed.

`tamiz.load` opens a bundle. A decoder becomes a `LanguageModel`, an encoder an `EmbeddingModel`.
Needs what `tamiz.runtime` needs, whose parts these classes put together.
"""
