"""Does a real model collapse at a learning rate that is too high, and which constraint prevents it?"""
