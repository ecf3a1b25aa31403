"""Fused operations of neural networks: softmax, losses, normalization, attention, convolution, pooling, embeddings."""
