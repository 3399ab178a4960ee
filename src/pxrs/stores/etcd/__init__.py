"""The registry in etcd."""
