# 在 m1 (主集群 cp-1) 上启动 tunnel
ssh -fN -p 15128 \
  -L 0.0.0.0:9400:<gpu1-pod-IP>:9400 \
  root@***.109.239.32
# m1:9400 → gpu1 内 DCGM Pod:9400
