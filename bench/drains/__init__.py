"""Fleets of nodes with faults and with ordinary churn, and the rules that take nodes out of service: who is right?"""
