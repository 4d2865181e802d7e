"""train and evaluate"""
