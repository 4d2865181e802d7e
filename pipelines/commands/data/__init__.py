"""get data"""
