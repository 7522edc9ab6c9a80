"""Model repository and Open Inference Protocol front end: a client of the core that serves models over HTTP.

A request goes through these files in order: ``http_protocol`` (bytes to HTTP), ``http_app`` (path to handler),
``infer`` (one inference), ``infer_body`` (pieces into buffers) with ``infer_request`` and ``request_tensors`` (JSON to
checked values), ``kernel_runner`` (tasks on the core), ``infer_response`` (buffers to answer). Models come in through
``repository`` (directories), ``config_file`` and ``config_check`` (configuration) and ``registered_model`` (kernel on
the core) into ``models``; ``lifecycle`` keeps them there. ``front_end`` puts it all together.
"""
