"""The data source ``nsq_log``: topics of Youzan's NSQ, read as logs."""
