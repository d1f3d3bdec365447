memfit completion bash | head -3
