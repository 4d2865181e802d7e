"""this installation"""
