"""Input stages of served models: a client sends the file or the text, the front end makes the model's tensors of it.

`settings` reads ``input_stage`` and ``share_input`` of ``config.pbtxt``, `loader` puts a stage before a model, `runner`
has it run in the front end's pool (`polymux.inputs.pool`) and gives the tensors to the model, `metrics` counts.
"""
