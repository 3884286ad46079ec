import numpy as np
import cv2
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.mean = np.array([0.485, 0.456, 0.406], dtype=np.float32)
        self.std = np.array([0.229, 0.224, 0.225], dtype=np.float32)

    def execute(self, requests):
        responses = []
        for request in requests:
            # 1. 获取原始图像字节流
            raw_image = pb_utils.get_input_tensor_by_name(request, "RAW_IMAGE")
            image_bytes = raw_image.as_numpy()[0]  # [1] 取出 bytes
            # 2. 解码 JPG -> numpy array (BGR)
            nparr = np.frombuffer(image_bytes, np.uint8)
            img_bgr = cv2.imdecode(nparr, cv2.IMREAD_COLOR)
            orig_h, orig_w = img_bgr.shape[:2]
            img_rgb = cv2.cvtColor(img_bgr, cv2.COLOR_BGR2RGB)
            img_f32 = img_rgb.astype(np.float32) / 255.0
            img_chw = np.transpose(img_f32, (2, 0, 1))  # HWC -> CHW
            img_norm = (img_chw - self.mean[:, None, None]) / self.std[:, None, None]
            # 6. 构造输出 tensor
            processed_image = pb_utils.Tensor("PROCESSED_IMAGE", img_norm.astype(np.float32))
            orig_shape = pb_utils.Tensor("ORIGINAL_SHAPE", np.array([orig_h, orig_w], dtype=np.int32))
            responses.append(pb_utils.InferenceResponse(output_tensors=[processed_image, orig_shape]))
        return responses
