"""What runs in a rank: receive a case, train it, observe, report.

Only the processes that the fork server makes import its modules; they import torch.
"""
