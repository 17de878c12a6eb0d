"""Small offline model directories, one per multimodal family, built from transformers' classes."""
