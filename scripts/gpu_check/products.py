"""The product of a step alone, by PyTorch where it is installed: replayed from a graph, as the server's steps are."""

TIMES = 100


def products(sizes, width, to):
    """Microseconds of a product by batch size, in each precision."""
    try:
        import torch
    except ImportError as cause:
        yield {"note": f"not measured: {cause}"}
        return
    for precision, kind in [("fp32", torch.float32), ("tf32", torch.float32), ("fp16", torch.float16)]:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        factor = torch.randn(width, to, device="cuda", dtype=kind)
        rows = {size: torch.randn(size, width, device="cuda", dtype=kind) for size in sizes}
        yield {"model": precision, **{f"{size} us": round(product_us(torch, rows[size], factor), 1) for size in sizes}}


def product_us(torch, x, factor):
    """One of many products in a recorded graph: launched singly, small ones would take the time of their launches."""
    result = x @ factor
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            torch.matmul(x, factor, out=result)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TIMES):
            torch.matmul(x, factor, out=result)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    torch.cuda.synchronize()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end) / TIMES
