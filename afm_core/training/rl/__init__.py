"""Reinforcement learning with tools: sample groups of episodes, score, advantages, update, sync, evaluate, keep."""
